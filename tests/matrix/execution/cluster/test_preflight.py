"""What a machine of a cluster must have before a run."""

import importlib.util
import os
import shutil
import time
from collections import namedtuple
from pathlib import Path

import pytest

from isorun import __version__
from isorun_matrix.execution.cluster import preflight

_FOUND = {"isorun": __version__, "problems": [], "quota": None, "governor": None}


@pytest.mark.parametrize(
    ("changes", "seconds", "expected"),
    [
        ({}, 0, []),
        ({"isorun": "0.0.1"}, 0, ["isorun 0.0.1"]),
        ({}, -60, ["-60 s"]),
        ({"problems": ["the disk is full"]}, 0, ["full"]),
    ],
)
def test_the_driver_names_what_does_not_fit(changes: dict[str, object], seconds: int, expected: list[str]) -> None:
    now = time.time()
    problems = [*preflight.problems_of({**_FOUND, "time": now + seconds, **changes}, now)]
    assert len(problems) == len(expected)
    assert all(word in problem for word, problem in zip(expected, problems, strict=True))


def test_a_machine_names_what_does_not_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    folders = [tmp_path / "state", tmp_path / "cache"]
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(2**40, 0, 2**40))
    report = preflight.look(["reference"], folders, os.getpid())
    assert report["problems"] == []
    assert report["cores"] >= 1
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(2**30, 2**30, 2**20))
    monkeypatch.setattr(os, "setpriority", denied)
    backend, priority, *disks = preflight.look(["reference", "nothing"], folders, os.getpid())["problems"]
    assert "No backend 'nothing' is installed" in backend
    assert "RAY_worker_niceness=0" in priority
    assert all("has 1 MiB free (expected at least 1024)" in disk for disk in disks)
    assert len(disks) == 2


@pytest.mark.skipif(importlib.util.find_spec("tensorrt") is not None, reason="needs a runtime that is not installed")
def test_a_runtime_that_is_not_installed_is_a_problem(tmp_path: Path) -> None:
    (lacking,) = preflight.look(["tensorrt"], [tmp_path], os.getpid())["problems"]
    assert lacking.startswith("tensorrt: the package 'tensorrt' is not installed. Install it: pip install")
