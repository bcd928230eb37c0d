"""The checks that every backend has to pass (``isorun conformance``), and tools for tests of backends."""
