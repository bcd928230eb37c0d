"""An environment whose interpreter is the one that runs the tests: what a worker does, without installing anything.
And the one that is installed for real, which all tests of a run share."""

import json
import os
import platform
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import isorun
import programs
from isorun.errors import EnvironmentBroken
from isorun.isolation.environments import interpreters

OPENVINO = "ort-openvino"
OPENVINO_WHEEL = "onnxruntime-openvino==1.24.1"
WELL = np.arange(4, dtype=np.float32)
BAD = -WELL - 1
"""Feeds of the fake backend: it returns the first, and misbehaves on the second."""
_PYTHONS = ("3.13", "3.12", "3.11")  # those that there is a wheel for


def own_environment(root: Path, name: str, *path: Path) -> str:
    """Make one under the folder of environments, with folders before its path.

    Returns:
        Its name: other processes of a parallel run may make one as well.
    """
    name = f"{name}-{os.getpid()}"
    folder = root / name
    if folder.is_dir():
        return name
    use_own_interpreter(folder, *path)
    record = {"python": platform.python_version(), "install": []}
    (folder / "environment.json").write_text(json.dumps(record))
    return name


def use_own_interpreter(folder: Path, *path: Path) -> None:
    """Give an environment the interpreter that runs the tests, with folders before its path."""
    extra = "".join(f"{entry}{os.pathsep}" for entry in path)
    start = f'PYTHONPATH="{extra}$PYTHONPATH" exec "{sys.executable}" "$@"'
    programs.write(folder / "bin" / "python", "#!/bin/sh", start)


def openvino_python() -> str:
    """The version of Python for the environment :data:`OPENVINO`: the one that runs the tests, where it will do."""
    own = f"{sys.version_info.major}.{sys.version_info.minor}"
    for version in (own, *_PYTHONS):
        if version in _PYTHONS:
            try:
                interpreters.find(version)
            except EnvironmentBroken:
                continue
            return version
    pytest.skip(f"there is none of the Pythons {', '.join(_PYTHONS)} that {OPENVINO_WHEEL} has a wheel for")


def run(session: isorun.Session, x: np.ndarray = WELL) -> np.ndarray:
    """The output of the fake backend in tests/core/isolation/worker/fakes."""
    output: np.ndarray = session.run(None, {"x": x})[0]
    return output


def worker_pid(session: isorun.Session) -> int:
    """The process id of a session's worker."""
    return session._resolved.worker.connection().process.pid  # type: ignore[union-attr]


def is_alive(pid: int) -> bool:
    """Whether a thread of that process lives: the first may be gone, and others still hold its files."""
    process = Path(f"/proc/{pid}")
    try:
        state = (process / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
        return state != "Z" or len(list((process / "task").iterdir())) > 1
    except OSError:
        return False


def wait_until(happened: Callable[[], bool], seconds: float = 60.0) -> bool:
    """Whether it happened within so many seconds."""
    deadline = time.monotonic() + seconds
    while not happened():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True
