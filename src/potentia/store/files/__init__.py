"""Score files: tables, lm-eval results, the papers' layouts, leaderboards."""

from potentia.store.files.read import read_files
from potentia.store.files.staged import StagedScores
from potentia.store.files.write import write_scores
