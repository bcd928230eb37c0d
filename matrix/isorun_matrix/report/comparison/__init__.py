"""Comparisons of runs: which cells changed, in tables and as JUnit's XML."""
