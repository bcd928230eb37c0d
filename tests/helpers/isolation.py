"""An environment whose interpreter is the one that runs the tests: what a worker does, without installing anything."""

from __future__ import annotations

import json
import os
import platform
import sys
import time
from collections.abc import Callable
from pathlib import Path


def own_environment(root: Path, name: str, *path: Path) -> str:
    """Make one under the folder of environments, with folders before its path.

    Returns:
        Its name: other processes of a parallel run may make one as well.
    """
    name = f"{name}-{os.getpid()}"
    folder = root / name
    if folder.is_dir():
        return name
    (folder / "bin").mkdir(parents=True)
    python = folder / "bin" / "python"
    extra = "".join(f"{each}{os.pathsep}" for each in path)
    python.write_text(f'#!/bin/sh\nPYTHONPATH="{extra}$PYTHONPATH" exec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    record = {"python": platform.python_version(), "install": []}
    (folder / "environment.json").write_text(json.dumps(record))
    return name


def is_alive(pid: int) -> bool:
    """Whether a thread of that process lives: the first may be gone, and others still hold its files."""
    process = Path(f"/proc/{pid}")
    try:
        state = (process / "stat").read_text().rpartition(")")[2].split()[0]
        return state != "Z" or len(list((process / "task").iterdir())) > 1
    except OSError:
        return False


def wait_until(happened: Callable[[], bool], seconds: float = 20.0) -> bool:
    """Whether it happened within so many seconds."""
    deadline = time.monotonic() + seconds
    while not happened():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True
