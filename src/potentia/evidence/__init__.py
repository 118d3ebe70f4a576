"""Evidence: scores, outcomes, facts and studies, read once from any source; the only door to them.

A source is a store (a SQLite file or a database URL), a table, lm-eval results or a paper's published file. The command
line, the report, the board and Python analyse what ``read`` returns, so they cannot disagree on what is there.
"""

from potentia.evidence.evidence import Evidence, facts_of_study, parse_study_record
from potentia.evidence.read import ALL, is_store, read, read_by_metric, to_evidence
