"""Interpreters that do not become workers."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from isorun.errors import WorkerDied
from isorun.isolation.worker import server
from isorun.isolation.worker.process import WorkerProcess


@pytest.fixture
def python(tmp_path: Path):
    """Makes a program of some lines for the shell, in the place of an interpreter."""

    def make(*lines: str) -> str:
        path = tmp_path / "python"
        path.write_text("\n".join(["#!/bin/sh", *lines, ""]))
        path.chmod(0o755)
        return str(path)

    return make


def test_one_that_does_not_get_ready_in_time(python):
    start = time.monotonic()
    with pytest.raises(WorkerDied, match=r"The worker of x was not ready within 0\.3 s. Its log ends:\nstill loading"):
        WorkerProcess(python("echo still loading", "sleep 100"), dict(os.environ), "The worker of x", ready_seconds=0.3)
    assert time.monotonic() - start < 20


def test_one_that_ends_at_once(python):
    with pytest.raises(WorkerDied, match="ended with exit code 3 before it was ready") as caught:
        WorkerProcess(python("echo no module >&2", "exit 3"), dict(os.environ), "The worker")
    assert (caught.value.exit_code, caught.value.log) == (3, "no module")


def test_the_end_of_a_long_log(python):
    with pytest.raises(WorkerDied) as caught:
        WorkerProcess(python("seq 1 100000", "exit 1"), dict(os.environ), "The worker")
    assert caught.value.log.splitlines() == [str(number) for number in range(99_976, 100_001)]


def test_a_worker_keeps_its_log_short(tmp_path, monkeypatch):
    monkeypatch.setattr(server, "_MOST_LOG", 1000)
    with (tmp_path / "log").open("a") as log:
        monkeypatch.setattr(server.sys, "stderr", log)
        log.write("x" * 1000)
        log.flush()
        server._keep_log_short()
        assert os.fstat(log.fileno()).st_size == 1000
        log.write("y")
        log.flush()
        server._keep_log_short()
        log.write("z")
    assert (tmp_path / "log").read_text() == "z"
