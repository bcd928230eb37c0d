"""The child's side of :func:`isorun.system.subprocesses.python_module` and :func:`~isorun.system.subprocesses.guarded`.

It runs as ``__main__`` and imports little: every child starts with it.
"""

from __future__ import annotations

import contextlib
import os
import runpy
import signal
import subprocess
import sys

from isorun.system import portable

_PR_SET_PDEATHSIG = 1


def _main(parent: int, module: str, *arguments: str) -> None:
    """Run a module or, behind ``--``, any other program, which dies with all that it has started."""
    is_guard = module == "--" and sys.platform != "win32"
    if is_guard:
        signal.signal(signal.SIGTERM, lambda *_: os.killpg(os.getpid(), signal.SIGKILL))
    if (prctl := portable.c_library_function("prctl")) is not None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGTERM if is_guard else signal.SIGKILL)
    # The parent died before the kernel was told. On Windows, it may be a launcher.
    if sys.platform != "win32" and os.getppid() != parent:
        sys.exit("the parent process is gone")
    if module == "--":
        code = subprocess.call(arguments)
        if code < 0:  # end by the same signal
            with contextlib.suppress(OSError):  # of SIGKILL, which has no handler
                signal.signal(-code, signal.SIG_DFL)
            os.kill(os.getpid(), -code)
        sys.exit(code)
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    _main(int(sys.argv[1]), *sys.argv[2:])
