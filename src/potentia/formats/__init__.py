"""Score files: tables, lm-eval results, the papers' layouts, leaderboards."""

from potentia.formats.columns import Reading, Says
from potentia.formats.into_store import Imported, import_scores
from potentia.formats.leaderboard import write_tables
from potentia.formats.read import read_files, read_frame
from potentia.formats.staged import StagedScores
from potentia.formats.write import write_scores
