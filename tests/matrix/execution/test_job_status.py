from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from isorun_matrix.execution.job_process import Exit
from isorun_matrix.execution.job_status import conclude


def judged(folder: Path, ended: Exit, outcome: dict[str, Any] | None) -> dict[str, Any]:
    if outcome is not None:
        (folder / "outcome.json").write_text(json.dumps(outcome))
    return conclude(ended, folder, 9)


def ended(code: int = 0, *, timed_out: bool = False, log: str = "") -> Exit:
    return Exit(code, timed_out, 1.5, log)


@pytest.mark.parametrize(
    ("exit_", "outcome", "status", "reason"),
    [
        (ended(), {"status": "ok"}, "ok", None),
        (ended(), {"status": "ok", "parity": {"verdict": "pass"}}, "ok", None),
        (
            ended(),
            {"status": "ok", "parity": {"verdict": "fail", "summary": "y is off (on all feeds)"}},
            "parity-failed",
            "y is off (on all feeds)",
        ),
        (ended(), {"status": "unavailable", "reason": "no device", "remedy": "Buy."}, "unavailable", "no device"),
        (ended(-11), None, "crashed", "the process died of SIGSEGV"),
        (ended(-6), {"status": "ok"}, "crashed", "the process died of SIGABRT after it had finished its work"),
        (ended(-9), None, "crashed", "the process died of SIGKILL; the system does that when memory runs out"),
        (
            ended(-9, timed_out=True),
            None,
            "timeout",
            "stopped at its time limit of 9 s; its log says where it was",
        ),
        (ended(1, log="Trace\nValueError: x\n\n"), None, "error", "the process ended with exit code 1: ValueError: x"),
        (ended(3), None, "error", "the process ended with exit code 3"),
        (
            ended(),
            None,
            "error",
            "the process ended without a result, as if it were done: something in it called exit(0)",
        ),
    ],
)
def test_what_became_of_a_job(
    tmp_path: Path, exit_: Exit, outcome: dict[str, Any] | None, status: str, reason: str | None
) -> None:
    found = judged(tmp_path, exit_, outcome)
    assert (found["status"], found["reason"], found["wall_s"]) == (status, reason, 1.5)
    assert (found["log"] is not None) == (status in ("crashed", "timeout", "error"))
