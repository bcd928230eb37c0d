"""isorun's conformance checks on tract."""

from isorun.testing.conformance import Conformance


class TestTract(Conformance, backend="tract"): ...
