"""isorun's conformance checks, in DeepSparse's environment."""

from __future__ import annotations

from pathlib import Path

from isorun_conformance import runner

SKIPPED = {"device arrays", "model bert-3l", "model bert-6l", "model bert-base"}
KNOWN_FAILURES = Path(__file__).with_name("known-failures.toml")


def test_passes_conformance(environment: str) -> None:
    report = runner.run("deepsparse", environment=environment, known_failures=KNOWN_FAILURES)
    assert report.passed, report.causes
    assert {capability.name for capability in report.capabilities if capability.status == "skipped"} == SKIPPED
