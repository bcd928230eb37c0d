"""Statistics of what was measured: percentiles of a process, the figures of a cell from its rounds, and verdicts."""
