from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from isorun_matrix.execution.job_process import launch

Write = Callable[[str], str]


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Makes a module that a child can run, and gives its name."""
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    def write(code: str) -> str:
        (tmp_path / "job_of_a_test.py").write_text(code)
        return "job_of_a_test"

    return write


def test_the_output_goes_to_the_log(module: Write, tmp_path: Path) -> None:
    code = "import os, sys\nprint(sys.argv[1])\nsys.stdout.flush()\nos.write(2, b'from below\\n')\n"
    ended = launch(module(code), tmp_path, 20)
    assert (ended.code, ended.signal, ended.timed_out) == (0, None, False)
    assert ended.log == f"{tmp_path}\nfrom below"
    assert (tmp_path / "log.txt").read_text() == f"{tmp_path}\nfrom below\n"


def test_exit_codes_and_signals(module: Write, tmp_path: Path) -> None:
    assert launch(module("raise SystemExit(7)"), tmp_path, 20).code == 7
    ended = launch(module("import os; os.abort()"), tmp_path, 20)
    assert (ended.signal, ended.timed_out) == ("SIGABRT", False)
    assert "Fatal Python error: Aborted" in ended.log


def test_the_time_limit_kills_the_process_and_its_descendants(module: Write, tmp_path: Path) -> None:
    code = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print(child.pid, flush=True)
time.sleep(600)
"""
    started = time.monotonic()
    ended = launch(module(code), tmp_path, 1)
    assert ended.timed_out
    assert ended.signal == "SIGKILL"
    assert time.monotonic() - started < 10
    grandchild = Path("/proc") / ended.log / "stat"
    for _ in range(100):
        if not grandchild.exists() or grandchild.read_text().rpartition(")")[2].split()[0] == "Z":
            return
        time.sleep(0.05)
    pytest.fail("the grandchild is alive")


def test_the_working_directory_adds_no_modules(module: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "json.py").write_text("raise ImportError('the wrong json')")
    monkeypatch.chdir(tmp_path / "here")
    assert launch(module("import json"), tmp_path, 20).code == 0


def test_runs_in_any_thread(module: Write, tmp_path: Path) -> None:
    codes: list[int] = []
    name = module("raise SystemExit(5)")
    thread = threading.Thread(target=lambda: codes.append(launch(name, tmp_path, 20).code))
    thread.start()
    thread.join()
    assert codes == [5]
