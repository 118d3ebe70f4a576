"""Score files: tables, results of evaluation tools, the papers' layouts, leaderboards."""

from potentia.formats.columns import ColumnHints, TableDescription, TableLayout
from potentia.formats.importing import ImportSummary, import_scores
from potentia.formats.model_names import name_model_by_path
from potentia.formats.read import read_score_files
from potentia.formats.staged import StagedScores
from potentia.formats.write import write_scores, write_tables
