from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from isorun.system.subprocesses import Exit
from isorun_matrix.execution.processes import launch

OK: dict[str, Any] = {"status": "ok", "result": {"parity": {"verdict": "pass"}}}
WRONG: dict[str, Any] = {"status": "ok", "result": {"parity": {"verdict": "fail", "summary": "y is off"}}}
LACKING = {"status": "unavailable", "reason": "no device", "remedy": "Buy."}
TRACEBACK = "Trace\nValueError: x\n\n"


@pytest.mark.parametrize(
    ("code", "outcome", "status", "reason"),
    [
        (0, {"status": "ok", "result": {"path": "m"}}, "ok", None),
        (0, OK, "ok", None),
        (0, WRONG, "parity-failed", "y is off"),
        (0, LACKING, "unavailable", "no device"),
        (-11, None, "crashed", "SIGSEGV"),
        (-6, OK, "crashed", "SIGABRT after the work was finished"),
        (-9, None, "crashed", "memory"),
        (1, None, "error", "exit code 1: ValueError: x"),
        (0, None, "error", "exit(0)"),
    ],
)
def test_status(tmp_path: Path, code: int, outcome: dict[str, Any] | None, status: str, reason: str | None) -> None:
    if outcome is not None:
        (tmp_path / "outcome.json").write_text(json.dumps(outcome))
    found = launch.status(Exit(code, 1.5, TRACEBACK), tmp_path, 9)
    assert (found["status"], found["wall_s"]) == (status, 1.5)
    assert reason is None or reason in found["reason"]
    assert (found["log"] is not None) == (status in ("crashed", "error"))


def test_a_time_limit_hides_the_signal_that_enforced_it(tmp_path: Path) -> None:
    found = launch.status(Exit(-9, 9, "a stack", timeout=9), tmp_path, 9)
    assert (found["status"], found["log"]) == ("timeout", "a stack")
    assert "9 s" in found["reason"]
