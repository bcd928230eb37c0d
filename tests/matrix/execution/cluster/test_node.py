"""One run at a time on a host, and a cluster without Ray."""

import importlib
import os
import sys
import threading
from pathlib import Path

import pytest

from isorun.errors import SpecError
from isorun_matrix.execution import host_lock


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


def test_a_cluster_without_ray_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.delitem(sys.modules, "isorun_matrix.execution.cluster.driver", raising=False)
    with pytest.raises(SpecError, match=r"isorun\[ray\]"):
        importlib.import_module("isorun_matrix.execution.cluster.driver")
