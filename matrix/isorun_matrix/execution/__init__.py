"""Running a matrix: the plan, the processes that do the work, and what is shown meanwhile."""
