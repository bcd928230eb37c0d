"""The results of a run: typed records, the files that hold them, and reading them back."""
