"""Run a job in a process of its own: a fresh interpreter with a time limit, which never outlives its parent.

The parent sleeps while the process runs: polling would use the cores that are measured. The output goes to a file. The
process dies when its parent dies (:mod:`isorun_matrix.execution.job_main`).
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from isorun.system.log_tail import end_of_file
from isorun_matrix.results.layout import LOG

_GRACE_SECONDS = 1.0


@dataclass(frozen=True)
class Exit:
    """How a process ended.

    Attributes:
        code: the exit code; negative for the signal that ended it.
        timed_out: whether it was killed at its time limit.
        seconds: how long it ran.
        log: the end of its output.
    """

    code: int
    timed_out: bool
    seconds: float
    log: str

    @property
    def signal(self) -> str | None:
        """The name of the signal that ended the process, such as ``SIGSEGV``."""
        return signal.Signals(-self.code).name if self.code < 0 else None


def launch(module: str, folder: Path, time_limit: float) -> Exit:
    """Run ``python -m module folder`` until it ends or its time limit is reached.

    Args:
        module: a module that calls :func:`isorun_matrix.execution.job_main.main`.
        folder: holds the job, and receives the log.
        time_limit: in seconds. When it is reached, the process writes its stack to the log and is killed, with every
            process that it started.
    """
    # -P: a folder named onnx in the working directory must not shadow the package.
    started = time.monotonic()
    command = [sys.executable, "-P", "-X", "faulthandler", "-m", module, str(folder), str(os.getpid()), str(started)]
    with (folder / LOG).open("wb") as log, _interrupts_held() as release:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
        )
        # Popen.wait with a timeout polls; a thread that waits without one does not. An event rather than the thread's
        # join: Ctrl-C in a join makes Python 3.11 believe that the thread has finished (bpo-45274).
        ended = threading.Event()
        threading.Thread(target=_announce, args=(process, ended), daemon=True).start()
        try:
            release()
            timed_out = not ended.wait(time_limit + _GRACE_SECONDS)
        finally:
            if not ended.is_set():
                with suppress(ProcessLookupError):  # it has just ended
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    return Exit(process.returncode, timed_out, time.monotonic() - started, end_of_file(folder / LOG))


def _announce(process: subprocess.Popen[bytes], ended: threading.Event) -> None:
    process.wait()
    ended.set()


@contextmanager
def _interrupts_held() -> Iterator[Callable[[], None]]:
    """Defer Ctrl-C until the yielded function is called: raised while a process starts, it would orphan the process.

    Python runs the handler in the main thread only; in other threads this has no effect.
    """
    handler = signal.getsignal(signal.SIGINT)
    if not callable(handler) or threading.current_thread() is not threading.main_thread():
        yield lambda: None
        return
    held: list[int] = []
    signal.signal(signal.SIGINT, lambda number, _: held.append(number))

    def release() -> None:
        signal.signal(signal.SIGINT, handler)
        while held:
            handler(held.pop(), None)

    try:
        yield release
    finally:
        release()
