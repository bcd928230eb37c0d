"""Programs in processes of their own."""

import os
import subprocess
import sys
import venv
from pathlib import Path


def printed(code: str, *arguments: object, timeout: float = 300, **variables: str) -> str:
    """What a program of Python writes to standard output. It ends well, and writes nothing to standard error.

    It imports what is beside this file; warnings are errors.

    Args:
        code: the program.
        arguments: what it finds in ``sys.argv``.
        timeout: in seconds.
        variables: its environment, besides what is inherited.
    """
    own = [str(Path(__file__).parent), variables.pop("PYTHONPATH", os.environ.get("PYTHONPATH", ""))]
    ran = subprocess.run(
        [sys.executable, "-W", "error", "-c", code, *map(str, arguments)],
        env={**os.environ, **variables, "PYTHONPATH": os.pathsep.join(filter(None, own))},
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    assert (ran.returncode, ran.stderr) == (0, "")
    return ran.stdout


def output(*command: object, timeout: float = 600, **variables: str) -> str:
    """What a command writes to standard output. It ends well."""
    ran = subprocess.run(
        [*map(str, command)],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    return ran.stdout


def python_with(variable: str, folder: Path, *packages: object) -> str:
    """A Python that has packages: the one that a variable names, or else that of a new environment in a folder, which
    takes minutes."""
    if variable in os.environ:
        return os.environ[variable]
    venv.create(folder, with_pip=True)
    python = str(folder / "bin" / "python")
    output(python, "-m", "pip", "install", "--quiet", *packages, timeout=3600)
    return python


def write(path: Path, *lines: str) -> Path:
    """Write a program, and the folders that it is in."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join([*lines, ""]), encoding="utf-8")
    path.chmod(0o755)
    return path
