"""Programs in a Python process of their own. They import what is beside this file; warnings are errors."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def printed(code: str, *arguments: object, timeout: float = 300, **variables: str) -> str:
    """What a program writes to standard output. It ends well, and writes nothing to standard error.

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
