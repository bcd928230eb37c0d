"""Interpreters that start no worker, and the log."""

import os
import time
from pathlib import Path

import pytest

import programs
from isorun.errors import WorkerDied
from isorun.isolation.worker import server
from isorun.isolation.worker.process import WorkerProcess


@pytest.fixture
def python(tmp_path: Path):
    """Writes a shell script in place of an interpreter."""

    def make(*lines: str) -> str:
        return str(programs.write(tmp_path / "python", "#!/bin/sh", *lines))

    return make


def test_not_ready_in_time(python):
    start = time.monotonic()
    with pytest.raises(WorkerDied, match=r"The worker of x was not ready within 0\.3 s. Its log ends:\nstill loading"):
        WorkerProcess(python("echo still loading", "sleep 100"), dict(os.environ), "The worker of x", ready_seconds=0.3)
    assert time.monotonic() - start < 20


def test_exits_before_it_is_ready(python):
    with pytest.raises(WorkerDied, match="exited with code 3 before it was ready") as caught:
        WorkerProcess(python("echo no module >&2", "exit 3"), dict(os.environ), "The worker")
    assert (caught.value.exit_code, caught.value.log) == (3, "no module")


def test_worker_truncates_its_log(tmp_path, monkeypatch):
    monkeypatch.setattr(server, "_MAX_LOG", 1000)
    with (tmp_path / "log").open("a") as log:
        monkeypatch.setattr(server.sys, "stderr", log)
        log.write("x" * 1000)
        log.flush()
        server._truncate_log()
        assert os.fstat(log.fileno()).st_size == 1000
        log.write("y")
        log.flush()
        server._truncate_log()
        log.write("z")
    assert (tmp_path / "log").read_text(encoding="utf-8") == "z"
