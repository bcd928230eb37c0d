"""isorun's conformance checks, in DeepSparse's environment."""

from __future__ import annotations

from isorun_conformance import runner

SKIPPED = {"dynamic shapes", "device arrays", "model bert-3l", "model bert-6l", "model bert-base"}


def test_passes_conformance(environment: str) -> None:
    report = runner.run("deepsparse", environment=environment)
    assert report.passed, [check for check in report.checks if check.outcome not in ("passed", "skipped")]
    assert {capability.name for capability in report.capabilities if capability.status == "skipped"} == SKIPPED
