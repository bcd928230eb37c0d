"""Child processes: :func:`run` for one that runs to its end, :class:`Child` for one that keeps running.

Every child

- leads a process group of its own, so Ctrl-C at the terminal reaches this process only. When the child exits or is
  killed, whatever it left running in its group is killed too (not on Windows);
- is killed when ``run`` or ``with Child(...)`` ends, on Ctrl-C included, and when the ``Child`` is garbage collected;
- is killed when this process dies (on Linux), provided that its command comes from :func:`python_module`, which kills
  the child alone, or from :func:`guarded`, which kills what it has started too;
- writes stderr and stdout to a file, never to a pipe: a child that prints a lot cannot block, and a grandchild that
  keeps the file open cannot delay the exit.

The parent blocks without polling, so it takes no processor time from a child that is measured.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, overload

from isorun.system import child_process, portable
from isorun.system.channels import Channel

_CHILD_MAIN = "isorun.system.child_main"
_LOG_BYTES, _LOG_LINES = 16384, 25
_C_STACK = ('  Binary file "', "Current thread's C stack trace")  # Python 3.14 prints it below a crash's traceback


@dataclass(frozen=True)
class Exit:
    """How a child process ended.

    Attributes:
        code: its exit code; negative for the signal that ended it.
        seconds: how long it ran.
        log: the last lines of what it wrote to stderr, and to stdout where that is not captured separately.
        output: all of stdout as text, where it is captured separately; else empty.
        timeout: the time limit in seconds after which it was killed; ``None`` if it ended by itself.
    """

    code: int
    seconds: float
    log: str = ""
    output: str = ""
    timeout: float | None = None

    @property
    def ok(self) -> bool:
        """Whether it exited with code 0 in time."""
        return self.code == 0 and self.timeout is None

    @property
    def signal(self) -> str | None:
        """The name of the signal that ended it, such as ``SIGSEGV``."""
        if self.code >= 0:
            return None
        try:
            return signal.Signals(-self.code).name
        except ValueError:  # a real-time signal
            return f"signal {-self.code}"

    @property
    def how(self) -> str:
        """How it ended, in words that follow a subject: ``was killed by SIGSEGV``, ``exited with code 3``."""
        if self.timeout is not None:
            return f"did not finish within {self.timeout:g} s and was killed"
        if self.signal is None:
            return f"exited with code {self.code}"
        return f"was killed by {self.signal}{' (out of memory?)' if self.signal == 'SIGKILL' else ''}"

    @property
    def last_line(self) -> str:
        """The last line of the log that is not blank; empty if there is none."""
        return next((line.strip() for line in reversed(self.log.splitlines()) if line.strip()), "")


def python_module(module: str, *arguments: str, python: str | Path = sys.executable) -> list[str]:
    """The command for ``python -m module arguments...`` in a child that dies with this process.

    Args:
        module: runs as ``__main__``; isorun has to be importable there.
        python: the interpreter. A crash there writes a traceback to the log (faulthandler).
    """
    # -P: a file in the working directory that is called numpy.py must not be taken for the package.
    return [str(python), "-P", "-X", "faulthandler", "-m", _CHILD_MAIN, str(os.getpid()), module, *arguments]


def guarded(command: Sequence[str]) -> list[str]:
    """The command for any other program in a child that dies with this process. Costs one start of Python, 30 ms.

    A program that does not exist is a traceback in the log and exit code 1, not an OSError.
    """
    return [sys.executable, "-P", "-m", _CHILD_MAIN, str(os.getpid()), "--", *command]


def run(
    command: Sequence[str],
    *,
    timeout: float | None = None,
    env: Mapping[str, str] | None = None,
    log: Path | None = None,
    capture_output: bool = False,
) -> Exit:
    """Run a command to its end, or kill it when its time is up.

    Args:
        command: from :func:`python_module` or :func:`guarded`, or any other.
        timeout: the time limit in seconds; ``None`` for none.
        env: its environment variables; ``None`` for those of this process.
        log: the file that its log is written to; ``None`` for one without a name.
        capture_output: whether stdout goes to ``Exit.output`` rather than to the log.

    Raises:
        OSError: the program cannot be started.
    """
    with Child(command, env=env, log=log, capture_output=capture_output) as child:
        exit_ = child.wait(timeout)
        if exit_ is None:
            child.kill()
            exit_ = replace(child.wait(), timeout=timeout)
        return exit_


def ask(
    module: str,
    *arguments: str,
    python: str | Path = sys.executable,
    timeout: float | None = None,
    env: Mapping[str, str] | None = None,
    log: Path | None = None,
) -> tuple[list[dict[str, Any]], Exit]:
    """Run a module that reports events by :func:`tell`. Returns the events in order, and how the process ended.

    Args:
        module, arguments, python: as for :func:`python_module`. The module's first argument is the file of its events:
            a plugin may write to standard output, or close it.
        timeout, env, log: as for :func:`run`.
    """
    with tempfile.TemporaryDirectory(prefix="isorun-events-") as folder:
        path = Path(folder) / "events"
        path.touch()
        exit_ = run(python_module(module, str(path), *arguments, python=python), timeout=timeout, env=env, log=log)
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()], exit_


def tell(path: str, **event: Any) -> None:
    """Report an event to the process that called :func:`ask`."""
    with Path(path).open("a", encoding="utf-8") as file:
        file.write(json.dumps(event, default=str) + "\n")


class Child:
    """A running child process; as a context manager, it is killed on leaving.

    Args:
        command, env, log, capture_output: as for :func:`run`.
        pass_fds: file descriptors that it inherits.
        channel: whether its standard input and output are a channel (:class:`isorun.system.channels.Parent` there).

    Attributes:
        channel: the channel, if it has one.

    Raises:
        OSError: the program cannot be started.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        log: Path | None = None,
        capture_output: bool = False,
        pass_fds: Sequence[int] = (),
        channel: bool = False,
    ) -> None:
        self._started = time.monotonic()
        self._exit: Exit | None = None
        self._lock = threading.Lock()
        self._files: list[weakref.finalize[..., Child]] = []
        self._log = self._file(log)
        self._output = self._file() if capture_output else None
        input_ = self._file()  # empty
        output = self._log if self._output is None else self._output
        self.channel: Channel | None = None
        ends: tuple[int, ...] = ()
        if channel:
            (input_, writer), (reader, output) = os.pipe(), os.pipe()
            ends, self.channel = (input_, output), Channel(reader, writer)
        self._process = child_process.ChildProcess()
        weakref.finalize(self, self._process.kill)
        try:
            self._process.start(command, env=env, stdin=input_, stdout=output, stderr=self._log, pass_fds=pass_fds)
        finally:
            for end in ends:
                os.close(end)
        self.pid: int = self._process.pid

    def _file(self, path: Path | None = None) -> int:
        """A file that is closed when the process has ended, or with this object; without a path, one in memory."""
        if path is None:
            descriptor = portable.anonymous_file("isorun-child")
        else:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND | portable.PLAIN, 0o666)
        self._files.append(weakref.finalize(self, os.close, descriptor))
        return descriptor

    @overload
    def wait(self) -> Exit: ...
    @overload
    def wait(self, timeout: float | None) -> Exit | None: ...
    def wait(self, timeout: float | None = None) -> Exit | None:
        """Wait until it exits; ``None`` if it still runs after so many seconds."""
        if not self._process.exited.wait(timeout):
            return None
        with self._lock:
            if self._exit is None:
                output = "" if self._output is None else _read(self._output, 0)
                self._exit = Exit(self._process.code, self._process.ended - self._started, self._end_of_log(), output)
                for close in self._files:  # Windows moves no folder in which a file is open
                    close()
            return self._exit

    def kill(self) -> None:
        """Kill it and its process group, and wait. Does nothing in a forked process, which is not the parent."""
        if self._process.kill():
            self._process.exited.wait()

    def log(self) -> str:
        """The last lines of its log so far."""
        with self._lock:
            return self._end_of_log() if self._exit is None else self._exit.log

    def _end_of_log(self) -> str:
        end = _read(self._log, max(0, os.fstat(self._log).st_size - _LOG_BYTES))
        return "\n".join([line for line in end.splitlines() if not line.startswith(_C_STACK)][-_LOG_LINES:])

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()


def _read(descriptor: int, start: int) -> str:
    return portable.read_at(descriptor, os.fstat(descriptor).st_size - start, start).decode(errors="replace")
