"""Finding a Python of some version: the one that runs this, those on the PATH, uv's, pyenv's.

Each is run before it is taken.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from isorun.errors import EnvironmentBroken

LEAST = (3, 11)
"""The oldest Python that isorun's own code runs on."""

_VERSION = re.compile(r"\d+\.\d+(\.\d+)?")
_ASK = "import json, platform, sys; print(json.dumps([platform.python_implementation(), sys.version_info[:3]]))"
_SECONDS = 20.0


@dataclass(frozen=True)
class Interpreter:
    """A Python that runs.

    Attributes:
        path: its executable.
        version: such as ``(3, 11, 7)``.
    """

    path: Path
    version: tuple[int, int, int]

    def __str__(self) -> str:
        return f"{'.'.join(map(str, self.version))} at {self.path}"


def find(wanted: str | None) -> Interpreter:
    """A Python of a version, or at a path.

    Args:
        wanted: ``3.11``, ``3.11.7``, a path, or the name of a program on the PATH; ``None`` for the version that
            runs this.

    Raises:
        EnvironmentBroken: there is none, or isorun does not run on it.
    """
    if wanted is None:
        return Interpreter(_own(), sys.version_info[:3])
    if not _VERSION.fullmatch(wanted):
        return _at(wanted)
    if tuple(map(int, wanted.split(".")[:2])) < LEAST:
        raise _too_old(f"Python {wanted}")
    candidates = list(_candidates())
    minor = ".".join(wanted.split(".")[:2])
    # One whose name has another version need not be asked; in the message it is of interest.
    likely = [path for path in candidates if path.name in ("python", "python3", f"python{minor}")]
    for found in filter(None, map(_ask, likely)):
        if fits(wanted, ".".join(map(str, found.version))):
            return found
    there = [str(found) for found in filter(None, map(_ask, candidates)) if found.version >= LEAST]
    raise EnvironmentBroken(f"There is no Python {wanted} here; found: {', '.join(there)}. {_where_to_get(wanted)}")


def fits(wanted: str, version: str) -> bool:
    """Whether a version is one that was asked for: ``3.11`` is any ``3.11.x``. A path's is not known."""
    return not _VERSION.fullmatch(wanted) or f"{version}.".startswith(f"{wanted}.")


def _at(wanted: str) -> Interpreter:
    path = shutil.which(Path(wanted).expanduser())
    if path is None:
        raise EnvironmentBroken(f"{wanted!r} is no version of Python, such as 3.11, nor a program to run")
    found = _ask(Path(path))
    if found is None:
        raise EnvironmentBroken(f"{path} is no CPython that runs")
    if found.version < LEAST:
        raise _too_old(str(found))
    return found


def _candidates() -> Iterator[Path]:
    """Executables that may be a Python, the nearest first, each once."""
    on_path = [
        path
        for folder in os.environ.get("PATH", os.defpath).split(os.pathsep)
        for path in sorted(Path(folder or ".").glob("python3*"))
        # A version manager's shims are slow, and refuse to run what is not the version in use: its own folder tells.
        if re.fullmatch(r"python3(\.\d+)?", path.name) and path.parent.name != "shims"
    ]
    seen = set()
    for path in (_own(), *on_path, *_of_uv(), *_of_pyenv()):
        real = path.resolve()
        if real not in seen and path.is_file():
            seen.add(real)
            yield path


def _own() -> Path:
    """What this process's environment, if it is one, was made with."""
    return Path(getattr(sys, "_base_executable", None) or sys.executable)


def _of_uv() -> list[Path]:
    uv = shutil.which("uv")
    if uv is None:
        return []
    asked = subprocess.run([uv, "python", "dir"], capture_output=True, text=True, check=False)
    return sorted(Path(asked.stdout.strip()).glob("cpython-*/bin/python3.*[0-9]")) if asked.stdout.strip() else []


def _of_pyenv() -> list[Path]:
    return sorted(Path(os.environ.get("PYENV_ROOT", "~/.pyenv")).expanduser().glob("versions/*/bin/python"))


def _ask(path: Path) -> Interpreter | None:
    """What an executable is; ``None`` where it is no CPython that runs."""
    try:
        # Not in this process's environment, whose variables would tell it where to look for its library.
        asked = subprocess.run([path, "-I", "-c", _ASK], capture_output=True, text=True, timeout=_SECONDS, check=True)
        implementation, version = json.loads(asked.stdout)
    except (OSError, subprocess.SubprocessError, ValueError):
        return None
    return Interpreter(path, tuple(version)) if implementation == "CPython" else None


def _too_old(what: str) -> EnvironmentBroken:
    least = ".".join(map(str, LEAST))
    return EnvironmentBroken(f"isorun does not run on {what}: the worker needs {least} or later")


def _where_to_get(wanted: str) -> str:
    ways = [
        f"{tool} {verb} {wanted}"
        for tool, verb in (("uv", "python install"), ("pyenv", "install"))
        if shutil.which(tool)
    ]
    if not ways:
        return "Get it from your system's packages or https://www.python.org/downloads, or install uv, which brings it."
    return f"Get it: {' or '.join(ways)}"
