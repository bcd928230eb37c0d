"""Making a virtual environment: by uv where it is installed, else by venv and pip."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path

from isorun.errors import EnvironmentBroken
from isorun.isolation.environments import source

_TAIL_LINES = 20


def make(folder: Path, interpreter: Path, install: Sequence[str]) -> None:
    """Make an environment with what isorun needs and what is asked for, resolved together.

    Args:
        folder: where. It exists and holds nothing but its record; it is left incomplete when this fails.
        interpreter: the Python that it is for.
        install: as given to pip.

    Raises:
        EnvironmentBroken: with the end of what the installer said.
    """
    uv = shutil.which("uv")
    python = str(folder / "bin" / "python")
    needed = [*source.requirements(), *install]
    if uv is not None:
        _run([uv, "venv", "--no-project", "--allow-existing", "--python", str(interpreter), str(folder)], folder.name)
        installer = [uv, "pip", "install", "--python", python]
    else:
        _run([str(interpreter), "-m", "venv", str(folder)], folder.name)
        installer = [python, "-m", "pip", "install", "--disable-pip-version-check", "--no-input"]
    # Before the packages: one of them may need isorun, and is to find it there.
    source.register(site_packages(folder), folder.parent)
    _run([*installer, *needed], folder.name)


def site_packages(folder: Path) -> Path:
    """Where an environment's packages are."""
    return next(folder.glob("lib/python3.*/site-packages"), folder / "lib")


def _run(command: Sequence[str], name: str) -> None:
    """Run an installer to its end; on Ctrl-C, end it first, so that nothing is written behind one's back."""
    variables = {
        key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
    }
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env=variables,
        start_new_session=True,
    )
    try:
        said, _ = process.communicate()
    except BaseException:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        raise
    if process.returncode:
        tail = "\n".join(said.strip().splitlines()[-_TAIL_LINES:])
        raise EnvironmentBroken(
            f"The environment {name!r} cannot be made: `{' '.join(map(str, command))}` ended with exit code "
            f"{process.returncode}:\n{tail}"
        )
