"""The child's side of :func:`isorun.system.subprocesses.python_module` and :func:`~isorun.system.subprocesses.guarded`.

It runs as ``__main__`` and imports little: every child starts with it.
"""

from __future__ import annotations

import os
import runpy
import signal
import subprocess
import sys

from isorun.system import portable

_PR_SET_PDEATHSIG = 1


def _main(parent: int, module: str, *arguments: str) -> None:
    """Run a module or, behind ``--``, any other program."""
    if (prctl := portable.c_library_function("prctl")) is not None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if sys.platform != "win32":
        if os.getppid() != parent:  # it died before the kernel was told
            sys.exit("the parent process is gone")
        if module == "--":
            os.execvp(arguments[0], arguments)
    elif module == "--":  # there, the parent may be a launcher, and exec does not replace a process
        sys.exit(subprocess.call(arguments))
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    _main(int(sys.argv[1]), *sys.argv[2:])
