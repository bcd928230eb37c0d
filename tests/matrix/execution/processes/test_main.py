from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

WORK = """
from dataclasses import dataclass
from isorun_matrix.execution.processes import main
from isorun.errors import BackendUnavailable, InvalidFeeds, UnsupportedModel, WorkerDied

@dataclass
class Value:
    value: int

@dataclass
class Job:
    inner: Value

def work(job, folder):
    {body}

main.main(Job, work)
"""


def run(folder: Path, body: str) -> subprocess.CompletedProcess[str]:
    (folder / "job.json").write_text(json.dumps({"time_limit": 20, "job": {"inner": {"value": 5}}}))
    arguments = [sys.executable, "-c", WORK.format(body=body), str(folder), str(time.monotonic())]
    return subprocess.run(arguments, capture_output=True, text=True, check=False, timeout=30)


@pytest.mark.parametrize(
    ("body", "outcome"),
    [
        ("return Value(job.inner.value + 1)", {"status": "ok", "result": {"value": 6}}),
        (
            "raise BackendUnavailable('b', 'no device', 'Buy one.')",
            {"status": "unavailable", "reason": "no device", "remedy": "Buy one."},
        ),
        ("raise UnsupportedModel('lacks Gather')", {"status": "unsupported", "reason": "lacks Gather"}),
        ("raise InvalidFeeds('too long')", {"status": "error", "reason": "too long"}),
        ("raise WorkerDied('killed', signal='SIGBUS', log='end')", {"status": "crashed", "reason": "killed"}),
        ("raise WorkerDied('ended', exit_code=3)", {"status": "error", "reason": "ended"}),
    ],
)
def test_the_outcome_is_the_result_or_the_error(tmp_path: Path, body: str, outcome: dict[str, object]) -> None:
    done = run(tmp_path, body)
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "outcome.json").read_text()) == outcome


def test_an_unknown_exception_leaves_a_traceback(tmp_path: Path) -> None:
    done = run(tmp_path, "return {}['missing']")
    assert done.returncode == 1
    assert "KeyError: 'missing'" in done.stderr
    assert not (tmp_path / "outcome.json").exists()
