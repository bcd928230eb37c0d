"""Reports of a run and comparisons of runs: terminal, Markdown, HTML."""
