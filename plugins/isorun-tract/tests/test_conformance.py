"""isorun's conformance checks on tract."""

from pathlib import Path

import pytest

from isorun_conformance import runner
from isorun_conformance.suite import Conformance

KNOWN_FAILURES = Path(__file__).with_name("known-failures.toml")


@pytest.mark.long
class TestTract(Conformance, backend="tract", known_failures=KNOWN_FAILURES): ...


def test_most_important_checks() -> None:
    """The whole suite takes a minute."""
    report = runner.run("tract", only=["precision fp32", "feeds", "results", "wrapped errors"])
    assert report.passed, report.causes
