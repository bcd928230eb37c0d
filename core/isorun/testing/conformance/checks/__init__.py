"""The checks, one file per subject. A new file has to be listed in :class:`isorun.testing.conformance.Conformance`."""
