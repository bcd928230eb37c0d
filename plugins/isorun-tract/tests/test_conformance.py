"""isorun's conformance checks on tract."""

from isorun.testing.conformance import Conformance

KNOWN_FAILURES = {"test_nan_stays_in_its_row": "tract 0.23 computes tanh(NaN) as -1"}


class TestTract(Conformance, backend="tract", known_failures=KNOWN_FAILURES): ...
