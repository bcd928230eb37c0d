"""Creating a virtual environment, with uv if it is installed, otherwise with venv and pip."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from isorun.errors import EnvironmentBroken
from isorun.isolation.environments import source
from isorun.system.subprocesses import guarded, run

_UNSET = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")


def make(folder: Path, interpreter: Path, install: Sequence[str]) -> None:
    """Create an environment with isorun's requirements and others, resolved together.

    Args:
        folder: an existing folder that holds the record alone. It is left incomplete if this fails.
        install: the other requirements, as for pip.

    Raises:
        EnvironmentBroken: the installer failed; with the end of its output.
    """
    uv = shutil.which("uv")
    python = str(folder / "bin" / "python")
    if uv is not None:
        _run([uv, "venv", "--no-project", "--allow-existing", "--python", str(interpreter), str(folder)], folder.name)
        installer = [uv, "pip", "install", "--python", python]
    else:
        _run([str(interpreter), "-m", "venv", str(folder)], folder.name)
        installer = [python, "-m", "pip", "install", "--disable-pip-version-check", "--no-input"]
    # Before the packages, since one of them may require isorun.
    source.register(site_packages(folder), folder.parent)
    _run([*installer, *source.requirements(), *install], folder.name)


def site_packages(folder: Path) -> Path:
    """The folder of an environment's packages."""
    return next(folder.glob("lib/python3.*/site-packages"), folder / "lib")


def _run(command: Sequence[str], name: str) -> None:
    # `env` rather than env=: the guard itself may need PYTHONPATH to import isorun.
    exit_ = run(guarded(["env", *(f"--unset={variable}" for variable in _UNSET), *command]))
    if not exit_.ok:
        raise EnvironmentBroken(
            f"Cannot create the environment {name!r}: `{' '.join(command)}` {exit_.how}:\n{exit_.log}"
        )
