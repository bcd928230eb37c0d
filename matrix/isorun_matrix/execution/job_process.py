"""Running a job in a process of its own: a fresh interpreter that is watched, limited, and never outlives this one.

The parent sleeps while the child runs; a parent that polls would take the very cores that are measured. What
the child prints goes to a file. The child kills itself when its parent dies (:mod:`isorun_matrix.execution.job_main`).
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
        code: its exit code; negative for the signal that ended it.
        timed_out: whether it was killed for taking too long.
        seconds: how long it lived.
        log: the end of what it printed.
    """

    code: int
    timed_out: bool
    seconds: float
    log: str

    @property
    def signal(self) -> str | None:
        """The name of the signal that ended it, such as ``SIGSEGV``."""
        return signal.Signals(-self.code).name if self.code < 0 else None


def launch(module: str, folder: Path, time_limit: float) -> Exit:
    """Run ``python -m module folder`` to its end, or to the end of its time.

    Args:
        module: a module that calls :func:`isorun_matrix.execution.job_main.main`.
        folder: where its job is and where its log goes.
        time_limit: in seconds. The child writes its stack to the log when it is reached, and is killed right
            after, with every process that it has started.
    """
    # -P: a folder of the user's that is called onnx must not be taken for the package.
    started = time.monotonic()
    command = [sys.executable, "-P", "-X", "faulthandler", "-m", module, str(folder), str(os.getpid()), str(started)]
    with (folder / LOG).open("wb") as log, _interrupts_held() as let_go:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
        )
        # Popen.wait with a timeout wakes up to look; a thread that waits without one does not. An event, and not
        # the thread's own join: Ctrl-C in a join makes Python 3.11 take the thread for finished (bpo-45274).
        ended = threading.Event()
        threading.Thread(target=_announce, args=(process, ended), daemon=True).start()
        try:
            let_go()
            timed_out = not ended.wait(time_limit + _GRACE_SECONDS)
        finally:
            if not ended.is_set():
                with suppress(ProcessLookupError):  # it has just ended by itself
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    return Exit(process.returncode, timed_out, time.monotonic() - started, end_of_file(folder / LOG))


def _announce(process: subprocess.Popen[bytes], ended: threading.Event) -> None:
    process.wait()
    ended.set()


@contextmanager
def _interrupts_held() -> Iterator[Callable[[], None]]:
    """Ctrl-C waits until what is given here is called: raised while a child starts, it would leave the child alone.

    The handler is Python's to run in the main thread; elsewhere there is nothing to hold.
    """
    handler = signal.getsignal(signal.SIGINT)
    if not callable(handler) or threading.current_thread() is not threading.main_thread():
        yield lambda: None
        return
    held: list[int] = []
    signal.signal(signal.SIGINT, lambda number, _: held.append(number))

    def let_go() -> None:
        signal.signal(signal.SIGINT, handler)
        while held:
            handler(held.pop(), None)

    try:
        yield let_go
    finally:
        let_go()
