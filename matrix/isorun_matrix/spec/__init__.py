"""The specification of a matrix: its keys, their defaults, and reading them from YAML."""
