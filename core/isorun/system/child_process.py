"""Starting, reaping and killing a child process, whatever becomes of the thread that asked for it."""

from __future__ import annotations

import os
import queue
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

from isorun.errors import IsorunError
from isorun.system import portable, threads


class ChildProcess:
    """The process of a :class:`isorun.system.subprocesses.Child`, which it outlives until the process is gone.

    Attributes:
        exited: set once it has exited and was reaped.
        ended: when it exited, on the clock of ``time.monotonic``.
    """

    def __init__(self) -> None:
        self._owner = os.getpid()
        self._reaping = threading.RLock()
        self._popen: subprocess.Popen[bytes] | None = None
        self.exited: threading.Event = threading.Event()
        self.ended: float = 0.0

    def start(self, command: Sequence[str], **options: Any) -> None:
        """Start it, with options for ``subprocess.Popen``.

        Raises:
            OSError: the program cannot be started.
            IsorunError: a thread to watch it cannot be started.
        """

        def work() -> None:
            self._popen = portable.own_group([*command], **options)
            try:
                threads.start(self._reap, name="isorun-child-reaper")
            except IsorunError:
                portable.kill_group(self._popen)
                self._reap()
                raise

        started = _on_starter(work)
        try:
            started.result()
        except BaseException:
            # On Ctrl-C, the process may be starting; nobody else knows of it.
            if started.exception() is None:
                self.kill()
            raise
        finally:
            del started  # an error holds the frames that it passed, and this holds the error

    @property
    def pid(self) -> int:
        """Its process id, and the id of its process group."""
        assert self._popen is not None
        return self._popen.pid

    @property
    def code(self) -> int:
        """Its exit code, once it has exited."""
        assert self._popen is not None
        code: int = self._popen.returncode
        return code

    def _reap(self) -> None:
        # Not reaped yet, the process keeps its id, so the group of that id is its own.
        assert self._popen is not None
        portable.wait_unreaped(self._popen)
        self.ended = time.monotonic()
        with self._reaping:
            portable.kill_group(self._popen)
            self._popen.wait()
            self.exited.set()

    def kill(self) -> bool:
        """Send the signal without waiting, since the garbage collector may call this in any thread. Returns whether
        there is a process of this parent's to wait for."""
        if self._popen is None or os.getpid() != self._owner:
            return False
        with self._reaping:
            if not self.exited.is_set():
                portable.kill_group(self._popen)
        return True


_Job = tuple[Callable[[], None], "Future[None]"]
_jobs: queue.SimpleQueue[_Job] | None = None
_jobs_lock = threading.Lock()


def _on_starter(work: Callable[[], None]) -> Future[None]:
    """Have the thread that starts all children do something.

    The kernel kills a child when the *thread* that started it ends, so this one lives as long as the process. And
    Ctrl-C, which only the main thread sees, cannot interrupt it between the start and the record of it.
    """
    global _jobs
    with _jobs_lock:
        if _jobs is None:
            jobs: queue.SimpleQueue[_Job] = queue.SimpleQueue()
            threads.start(_start_forever, jobs, name="isorun-child-starter")
            _jobs = jobs
    done: Future[None] = Future()
    _jobs.put((work, done))
    return done


def _start_forever(jobs: queue.SimpleQueue[_Job]) -> None:
    while True:
        work, done = jobs.get()
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - raised where the child was requested
            done.set_exception(error)
        else:
            done.set_result(None)
        del work, done  # else the last child would be kept until the next one


def _forget_starter() -> None:
    """A fork leaves every thread behind but one, and maybe a lock that another one held."""
    global _jobs, _jobs_lock
    _jobs, _jobs_lock = None, threading.Lock()


portable.after_fork_in_child(_forget_starter)
