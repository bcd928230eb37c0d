import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from isorun.system.process_usage import family
from isorun.system.subprocesses import Exit
from isorun_matrix.execution.processes import launch
from isorun_matrix.execution.processes.launch import Process
from isorun_matrix.results.folder import RunFolder

FAKES = Path(__file__).parents[2] / "fakes"
Start = Callable[..., Process]


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Start:
    """Starts ``pausing_job``."""
    python_module = launch.subprocesses.python_module
    monkeypatch.setenv("PYTHONPATH", str(FAKES))
    monkeypatch.setattr(launch.subprocesses, "python_module", lambda _, *rest: python_module("pausing_job", *rest))
    results = RunFolder(tmp_path / "run")

    def start(time_limit: float = 30, turns: int = 3, seconds: float = 0.0, fails_in: int = -1) -> Process:
        job = {"turns": turns, "seconds": seconds, "fails_in": fails_in}
        return Process(results, "pausing_job", job, time_limit)

    return start


def run_to_the_end(process: Process) -> list[int]:
    """The turns that were left at each pause."""
    left = []
    while (paused := process.proceed()) is not None:
        left.append(paused.turns)
    return left


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
    outcome = launch.status(Exit(code, 1.5, log), tmp_path, 9)
    assert (outcome["status"], outcome["wall_s"], outcome["log"]) == (status, 1.5, log)
    assert reason in outcome["reason"]


def test_processes_pause_and_do_not_share_a_folder(start: Start) -> None:
    with start() as first, start() as second:
        assert first.folder != second.folder
        first.proceed()
        assert run_to_the_end(second) == [3, 2, 1]
        assert run_to_the_end(first) == [2, 1]
        pids = [process.take_status()["result"]["pid"] for process in (first, second)]
    assert len({*pids}) == 2


def test_pauses_do_not_count_against_the_time_limit(start: Start) -> None:
    with start(time_limit=3) as process:
        process.proceed()
        time.sleep(3.5)
        assert run_to_the_end(process) == [2, 1]
        status = process.take_status()
    assert status["status"] == "ok"
    assert status["wall_s"] < 3


def test_the_time_limit_is_of_all_turns_together(start: Start) -> None:
    with start(time_limit=7.5, seconds=3) as process:  # a slow start and the grace are less than a turn
        assert run_to_the_end(process) == [3, 2, 1]
        status = process.take_status()
    assert status["status"] == "timeout"
    assert "pausing_job.py" in status["log"]


@pytest.mark.parametrize("fails_in", [0, 2])
def test_a_process_that_crashes_in_a_turn(start: Start, fails_in: int) -> None:
    with start(fails_in=fails_in) as process:
        assert run_to_the_end(process) == [3, 2, 1][: fails_in + 1]
        assert "SIGSEGV" in process.take_status()["reason"]


def test_a_process_that_is_killed_while_it_pauses(start: Start) -> None:
    with start() as process, start() as unharmed:
        process.proceed()
        (pid,) = [pid for pid in family() if pid != os.getpid() and _works_in(pid, process.folder)]
        os.kill(pid, signal.SIGKILL)
        assert process.proceed() is None
        assert process.take_status()["status"] == "crashed"
        assert run_to_the_end(unharmed) == [3, 2, 1]


def test_leaving_ends_a_process_that_pauses(start: Start) -> None:
    with start() as process:
        process.proceed()
    assert not any(_works_in(pid, process.folder) for pid in family())


def _works_in(pid: int, folder: Path) -> bool:
    return str(folder).encode() in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
