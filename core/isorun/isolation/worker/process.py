"""Starting a worker, what it printed, and how it ended.

It must not outlive this process. The kernel kills it when the *thread* that started it ends, so workers are started
by one thread that lives as long as the process; and a worker leaves by itself when its socket ends.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import queue
import signal
import socket
import subprocess
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from isorun.errors import WorkerDied, WorkerTimeout
from isorun.isolation.worker import wire
from isorun.system import log_tail

READY_SECONDS = 60.0
_END_SECONDS = 5.0

_logger = logging.getLogger(__name__)


class DiedIdle(WorkerDied):
    """The worker was dead before the request reached it, so another one may be asked."""


class WorkerProcess:
    """A worker that said READY.

    Args:
        python: the environment's interpreter.
        variables: its environment variables.
        title: what errors call it.

    Attributes:
        title: the same.
        trunk: the socket on which channels are opened.
        pid: its process id.
        dead: whether it is known to be gone.
        about: what it says of itself: the versions of Python and NumPy.

    Raises:
        WorkerDied: it did not come to say READY in time.
        OSError: the interpreter cannot be started.
    """

    def __init__(
        self, python: str, variables: Mapping[str, str], title: str, *, ready_seconds: float = READY_SECONDS
    ) -> None:
        self.title = title
        self._why_killed = ""
        self._owner = os.getpid()
        self._ending = threading.Lock()
        self.dead = False
        # Without a name, so that nothing is left behind; the worker keeps it short.
        self._log = os.memfd_create("isorun-worker-log", os.MFD_CLOEXEC)
        weakref.finalize(self, os.close, self._log)
        fcntl.fcntl(self._log, fcntl.F_SETFL, os.O_APPEND)
        self.trunk, theirs = socket.socketpair()
        # -P: a folder of the user's that is called numpy must not be taken for the package.
        command = [python, "-P", "-m", "isorun.isolation.worker", str(theirs.fileno()), str(os.getpid())]
        try:
            self._process = _start(
                command,
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=subprocess.STDOUT,
                env=variables,
                start_new_session=True,  # Ctrl-C at the terminal is this process's to handle
            )
        except BaseException:
            self.trunk.close()
            raise
        finally:
            theirs.close()
        self.pid = self._process.pid
        try:
            self.about = self._greeting(ready_seconds)
        except BaseException:
            self.end()
            raise

    def _greeting(self, seconds: float) -> dict[str, Any]:
        self.trunk.settimeout(seconds)
        try:
            _, _, text = wire.Receiver(self.trunk).receive()
        except TimeoutError as error:
            raise WorkerDied(f"{self.title} was not ready within {seconds:g} s", log=self.log()) from error
        except wire.Closed:
            raise self.died("before it was ready") from None
        self.trunk.settimeout(None)
        greeting: dict[str, Any] = json.loads(text)
        return greeting

    def log(self) -> str:
        """The end of what it printed."""
        size = os.fstat(self._log).st_size
        return log_tail.end_of(
            os.pread(self._log, log_tail.BYTES, max(0, size - log_tail.BYTES)).decode(errors="replace")
        )

    def died(self, when: str, kind: type[WorkerDied] = WorkerDied) -> WorkerDied:
        """The error that says how it ended. It has closed a socket; should it go on living, it is killed."""
        self.dead = True
        code = self._wait(_END_SECONDS)
        if code is None:
            self.end()
            return kind(f"{self.title} stopped listening {when} and was killed", log=self.log())
        name = signal.Signals(-code).name if code < 0 else None
        how = f"was killed by {name}" if name else f"ended with exit code {code}"
        if self._why_killed:
            when = f"{when}: {self._why_killed}"
        memory = "; the system does that when memory runs out" if name == "SIGKILL" and not self._why_killed else ""
        return kind(f"{self.title} {how} {when}{memory}", signal=name, exit_code=None if name else code, log=self.log())

    def timed_out(self, seconds: float) -> WorkerTimeout:
        """Kill it, since what it is at work on cannot be taken back, and say why."""
        stopped = " It was stopped, by SIGSTOP or a debugger." if self._is_stopped() else ""
        log = self.log()
        self._why_killed = f"a call took longer than {seconds:g} s"
        self.end()
        return WorkerTimeout(
            f"{self.title} did not answer within {seconds:g} s and was killed.{stopped} The next call starts another",
            seconds=seconds,
            log=log,
        )

    def warn_if_stopped(self) -> bool:
        """Log that it is stopped, if it is: calls wait until somebody continues it."""
        stopped = self._is_stopped()
        if stopped:
            _logger.warning(
                "%s (process %d) is stopped, and calls wait for it. Continue it with `kill -CONT %d`, or open the "
                "session with `timeout` to have it killed instead",
                self.title,
                self.pid,
                self.pid,
            )
        return stopped

    def _is_stopped(self) -> bool:
        try:
            stat = Path(f"/proc/{self.pid}/stat").read_text()
        except OSError:  # it is gone, which its socket will tell
            return False
        return stat.rpartition(")")[2].split()[0] in ("T", "t")

    def end(self) -> None:
        """Kill it, unless it has ended by itself. In a forked process, which it does not belong to, do nothing."""
        self.dead = True
        if os.getpid() != self._owner:
            return
        with self._ending:
            if self._wait(0) is None:
                os.killpg(self.pid, signal.SIGKILL)
                self._process.wait()
            self.trunk.close()

    def abandon(self) -> None:
        """In a forked process: leave it to the process that started it."""
        self.dead = True
        self.trunk.close()

    def _wait(self, seconds: float) -> int | None:
        try:
            return self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None


_Job = tuple[list[str], dict[str, Any], "queue.SimpleQueue[subprocess.Popen[Any] | BaseException]"]


class _Starter:
    """The thread that starts workers, made when the first is wanted."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._jobs: queue.SimpleQueue[_Job] | None = None

    def __call__(self, command: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
        with self._lock:
            if self._jobs is None:
                self._jobs = queue.SimpleQueue()
                threading.Thread(target=self._work, args=(self._jobs,), daemon=True, name="isorun-starter").start()
        done: queue.SimpleQueue[subprocess.Popen[Any] | BaseException] = queue.SimpleQueue()
        self._jobs.put((list(command), options, done))
        try:
            started = done.get()
        except BaseException:  # Ctrl-C: nobody else knows of the process that is being started
            if isinstance(started := done.get(), subprocess.Popen):
                started.kill()
                started.wait()
            raise
        if isinstance(started, BaseException):
            raise started
        return started

    @staticmethod
    def _work(jobs: queue.SimpleQueue[_Job]) -> None:
        while True:
            command, options, done = jobs.get()
            try:
                done.put(subprocess.Popen(command, **options))
            except BaseException as error:  # noqa: BLE001 - raised where the worker was asked for
                done.put(error)


_start: Callable[..., subprocess.Popen[Any]] = _Starter()


def _forked() -> None:
    global _start
    _start = _Starter()  # a fork leaves all threads but one behind


os.register_at_fork(after_in_child=_forked)
