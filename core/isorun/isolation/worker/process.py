"""Starting a worker, its log, and how it ended."""

from __future__ import annotations

import json
import logging
import os
import socket
from collections.abc import Mapping
from typing import Any

from isorun.errors import WorkerDied, WorkerTimeout
from isorun.isolation.worker import wire
from isorun.system import portable
from isorun.system.process_usage import stat_of
from isorun.system.subprocesses import Child, python_module

READY_SECONDS = 60.0
DURING_A_CALL = "during a call"
"""When a worker died that was busy: the end of :attr:`isorun.errors.WorkerDied.how`."""
_END_SECONDS = 5.0

_logger = logging.getLogger(__name__)


class DiedIdle(WorkerDied):
    """The worker was dead before the request reached it, so the request can be sent to another one."""


class WorkerProcess:
    """A worker that has sent READY.

    Args:
        title: its name in error messages.

    Attributes:
        title: the same.
        trunk: the socket on which channels are opened.
        dead: whether it is known to have ended.
        about: the versions of Python and NumPy there.

    Raises:
        WorkerDied: it was not ready in time.
        OSError: the interpreter cannot be started.
    """

    def __init__(
        self, python: str, variables: Mapping[str, str], title: str, *, ready_seconds: float = READY_SECONDS
    ) -> None:
        self.title = title
        self.dead: bool = False
        self._why_killed = ""
        self._owner = os.getpid()
        ours, theirs = portable.socket_pair()
        self.trunk: socket.socket = ours
        command = python_module("isorun.isolation.worker", str(theirs.fileno()), python=python)
        try:
            self._child = Child(command, env=variables, pass_fds=[theirs.fileno()])
        except BaseException:
            self.trunk.close()
            raise
        finally:
            theirs.close()
        self.pid: int = self._child.pid
        try:
            self.about: dict[str, Any] = self._greeting(ready_seconds)
        except BaseException:
            self.end()
            raise

    def _greeting(self, seconds: float) -> dict[str, Any]:
        self.trunk.settimeout(seconds)
        try:
            _, _, text = wire.Receiver(self.trunk).receive()
        except TimeoutError as error:
            raise WorkerDied(f"{self.title} was not ready within {seconds:g} s", log=self._child.log()) from error
        except wire.Closed:
            raise self.died("before it was ready") from None
        self.trunk.settimeout(None)
        greeting: dict[str, Any] = json.loads(text)
        return greeting

    def died(self, when: str, kind: type[WorkerDied] = WorkerDied) -> WorkerDied:
        """The error for a worker that has closed a socket. It is killed if it does not exit."""
        self.dead = True
        exit_ = self._child.wait(_END_SECONDS)
        if exit_ is None:
            self.end()
            return kind(f"{self.title} closed its socket {when} and was killed", log=self._child.log())
        how = f"was killed {when}: {self._why_killed}" if self._why_killed else f"{exit_.how} {when}"
        code = None if exit_.signal else exit_.code
        return kind(f"{self.title} {how}", signal=exit_.signal, exit_code=code, log=exit_.log)

    def timed_out(self, seconds: float) -> WorkerTimeout:
        """Kill it, since a running call cannot be cancelled; returns the error."""
        stopped = " It was stopped (SIGSTOP or a debugger)." if self._is_stopped() else ""
        log = self._child.log()
        self._why_killed = f"a call took longer than {seconds:g} s"
        self.end()
        return WorkerTimeout(
            f"{self.title} did not reply within {seconds:g} s and was killed.{stopped} The next call starts another",
            seconds=seconds,
            log=log,
        )

    def warn_if_stopped(self) -> bool:
        """Log a warning if it is stopped: calls wait until it is continued."""
        stopped = self._is_stopped()
        if stopped:
            _logger.warning(
                "%s (process %d) is stopped and calls are waiting for it. Continue it with `kill -CONT %d`, or open "
                "the session with `timeout` so that it is killed instead",
                self.title,
                self.pid,
                self.pid,
            )
        return stopped

    def _is_stopped(self) -> bool:
        return stat_of(self.pid)[:1] in (["T"], ["t"])  # that it has ended is reported by its socket

    def end(self) -> None:
        """Kill it if it runs. In a forked process, which is not its parent, do nothing."""
        self.dead = True
        if os.getpid() == self._owner:
            self._child.kill()
            self._child.wait()  # which closes its files
            self.trunk.close()

    def abandon(self) -> None:
        """In a forked process: leave it to its parent."""
        self.dead = True
        self.trunk.close()
