"""isorun's conformance checks on JAX."""

import pytest

from isorun_conformance import runner
from isorun_conformance.suite import Conformance

pytest.importorskip("jax", reason="the package jax is not installed")


@pytest.mark.long
class TestJax(Conformance, backend="jax"): ...


def test_most_important_checks() -> None:
    """The whole suite takes minutes."""
    report = runner.run("jax", only=["precision fp32", "static shapes", "results", "wrapped errors"])
    assert report.passed, report.causes
