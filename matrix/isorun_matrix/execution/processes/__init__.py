"""The processes that do the jobs of a matrix: each job in one of its own."""
