"""One run at a time on a host, and what a node refuses before a run."""

from __future__ import annotations

import os
import shutil
import threading
from collections import namedtuple
from pathlib import Path

import pytest

from isorun.errors import SpecError
from isorun_matrix.execution import host_lock, node


def test_waits_for_the_run_that_it_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(host_lock.FOLDER_VARIABLE, str(tmp_path))
    notes: list[str] = []
    waits, entered = threading.Event(), threading.Event()

    def note(text: str) -> None:
        notes.append(text)
        waits.set()

    def second() -> None:
        with host_lock.held(tmp_path / "second", note):
            entered.set()

    with host_lock.held(tmp_path / "first", note):
        thread = threading.Thread(target=second)
        thread.start()
        assert waits.wait(10)
        assert not entered.is_set()
    assert entered.wait(10)
    thread.join()
    assert notes[0].startswith(f"Waiting for another run on this machine: process {os.getpid()}, {tmp_path / 'first'}")


def test_a_lock_that_cannot_be_opened_names_the_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(host_lock.FOLDER_VARIABLE, str(tmp_path / "absent"))
    with pytest.raises(SpecError, match=host_lock.FOLDER_VARIABLE), host_lock.held(tmp_path, print):
        pass


def test_a_node_names_what_does_not_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    found = node.Node("run", "zen").preflight(["reference"])
    assert found["problems"] == []
    assert found["cores"] >= 1
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(2**30, 2**30, 2**20))
    monkeypatch.setattr(os, "setpriority", denied)
    backend, priority, *disks = node.Node("run", "zen").preflight(["reference", "nothing"])["problems"]
    assert "No backend 'nothing' is installed" in backend
    assert "RAY_worker_niceness=0" in priority
    assert all("has 1 MiB free, 1024 are needed" in disk for disk in disks)
    assert len(disks) == 2
