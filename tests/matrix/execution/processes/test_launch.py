from __future__ import annotations

import json
from pathlib import Path

import pytest

from isorun.system.subprocesses import Exit
from isorun_matrix.execution.processes import launch


@pytest.mark.parametrize(
    ("code", "finished", "status", "reason"),
    [
        (-6, True, "crashed", "SIGABRT after the work was finished"),
        (-9, False, "crashed", "memory"),
        (1, False, "error", "exit code 1: ValueError: x"),
    ],
)
def test_status_of_a_process_that_failed(tmp_path: Path, code: int, finished: bool, status: str, reason: str) -> None:
    if finished:
        (tmp_path / "outcome.json").write_text(json.dumps({"status": "ok", "result": {}}))
    log = "Trace\nValueError: x\n\n"
    found = launch.status(Exit(code, 1.5, log), tmp_path, 9)
    assert (found["status"], found["wall_s"], found["log"]) == (status, 1.5, log)
    assert reason in found["reason"]
