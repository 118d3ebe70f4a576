"""Training on the test task: scaling fits, effects of groups, emergence, mediation, frontiers, signs of exposure."""
