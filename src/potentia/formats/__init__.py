"""Score files: tables, lm-eval results, the papers' layouts, leaderboards."""

from potentia.formats.columns import Reading, Says
from potentia.formats.read import Imported, StagedScores, import_scores, read_files
from potentia.formats.write import write_scores, write_tables
