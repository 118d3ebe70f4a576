"""Score files: tables, lm-eval results, the papers' layouts, leaderboards."""
