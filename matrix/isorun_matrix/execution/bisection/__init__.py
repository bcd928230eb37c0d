"""Which release of a runtime made a model slower, larger or different: a binary search over releases, each in an
isolated environment."""
