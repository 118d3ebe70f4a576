"""Estimators that every room of the analysis shares: Kendall's tau, resampling, tests of significance."""
