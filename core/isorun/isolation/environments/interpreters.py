"""Finding a Python interpreter: the one that runs this process, uv's, or one on the PATH."""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from isorun.errors import EnvironmentBroken, InvalidArgument
from isorun.system.subprocesses import run

MIN_VERSION = (3, 11)
"""The oldest Python that isorun supports."""

_VERSION = re.compile(r"\d+\.\d+(\.\d+)?")
_QUERY = "import json, platform, sys; print(json.dumps([platform.python_implementation(), sys.version_info[:3]]))"
_SECONDS = 20.0


@dataclass(frozen=True)
class Interpreter:
    """A Python interpreter that was started once to learn its version.

    Attributes:
        path: its executable.
        version: such as ``(3, 11, 7)``.
    """

    path: Path
    version: tuple[int, int, int]

    def __str__(self) -> str:
        return f"{'.'.join(map(str, self.version))} at {self.path}"


def find(python: str | None) -> Interpreter:
    """The interpreter of a version, or at a path.

    Args:
        python: ``3.11``, ``3.11.7``, a path, or the name of a program on the PATH; ``None`` for the version that runs
            this process.

    Raises:
        EnvironmentBroken: it is not installed, or isorun does not support it.
        InvalidArgument: it is neither a version nor an executable.
    """
    if python is None:
        return Interpreter(_own(), sys.version_info[:3])
    if _VERSION.fullmatch(python):
        _check_version(f"Python {python}", tuple(map(int, python.split("."))))
        for path in _candidates(python):
            interpreter = _query(path)
            if interpreter and matches(python, ".".join(map(str, interpreter.version))):
                return interpreter
        raise EnvironmentBroken(
            f"Python {python} was not found on the PATH{' or by uv' if shutil.which('uv') else ''}. "
            f"Install it, for example with `uv python install {python}`, or give the path of an interpreter"
        )
    program = shutil.which(Path(python).expanduser())
    if program is None:
        raise InvalidArgument(f"python must be a version, such as 3.11, or an executable, got {python!r}")
    interpreter = _query(Path(program))
    if interpreter is None:
        raise EnvironmentBroken(f"{program} is not a working CPython interpreter")
    _check_version(f"Python {interpreter}", interpreter.version)
    return interpreter


def matches(python: str, version: str) -> bool:
    """Whether a version satisfies a request: ``3.11`` accepts any ``3.11.x``. A path accepts every version."""
    return not _VERSION.fullmatch(python) or f"{version}.".startswith(f"{python}.")


def _candidates(python: str) -> Iterator[Path]:
    """Executables that may be that version, the nearest first."""
    yield _own()
    if uv := shutil.which("uv"):
        result = run([uv, "python", "find", "--system", "--no-project", python], capture_output=True)
        if result.ok:
            yield Path(result.output.strip())
    for name in (f"python{'.'.join(python.split('.')[:2])}", "python3", "python"):
        if program := shutil.which(name):
            yield Path(program)


def _own() -> Path:
    """The interpreter of this process; the base interpreter if it runs in an environment."""
    return Path(getattr(sys, "_base_executable", None) or sys.executable)


def _query(path: Path) -> Interpreter | None:
    """Start an executable to learn its version; ``None`` if it is not a CPython that works."""
    try:
        # -I: the variables of this process's environment would make it look elsewhere for its library.
        result = run([str(path), "-I", "-c", _QUERY], timeout=_SECONDS, capture_output=True)
        implementation, version = json.loads(result.output)
    except (OSError, ValueError):
        return None
    return Interpreter(path, tuple(version)) if implementation == "CPython" else None


def _check_version(what: str, version: tuple[int, ...]) -> None:
    if version[:2] < MIN_VERSION:
        minimum = ".".join(map(str, MIN_VERSION))
        raise EnvironmentBroken(f"isorun does not support {what}. Use Python {minimum} or later")
