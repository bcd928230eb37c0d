"""A running worker and the channels to it. Once it has ended, every request raises how it ended."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Sequence
from typing import Any

from isorun.errors import WorkerDied, WorkerTimeout
from isorun.isolation.worker import wire
from isorun.isolation.worker.channel import Channel
from isorun.isolation.worker.process import DiedIdle, WorkerProcess
from isorun.system import portable
from isorun.types import Feeds

_CLOSE_SECONDS = 5.0  # how long runs in flight may take when a model is closed


class Connection:
    """A worker process and the channels to it. Any thread may use it."""

    def __init__(self, process: WorkerProcess) -> None:
        self.process = process
        self._channels: set[Channel] = set()
        self._idle: list[Channel] = []
        self._asking = portable.lock_of(self, "_asking", threading.Lock)
        self._main = self._open()
        # Without a call of close(), the worker ends with its last user, or with this process.
        weakref.finalize(self, _end, process, self._channels)
        portable.notify_of_forks(self)

    def ask(self, method: str, seconds: float | None = None, **arguments: Any) -> Any:
        """Call one of :data:`isorun.isolation.worker.server.METHODS`, in the worker's main thread.

        Raises:
            WorkerTimeout: no reply within so many seconds. The worker was killed, unless another request kept it busy.
        """
        if not self._asking.acquire(timeout=-1 if seconds is None else seconds):
            raise WorkerTimeout(
                f"{self.process.title} was busy with another request for {seconds:g} s. It was not killed"
            )
        try:
            if not self._main.sound:  # Ctrl-C interrupted the last request
                self._drop(self._main)
                self._main = self._open()
            return self._main.ask(method, arguments, seconds)
        finally:
            self._asking.release()

    def run(
        self, executable: int, output_names: Sequence[str] | None, feeds: Feeds, seconds: float | None = None
    ) -> list[Any]:
        """Run once: see :meth:`isorun.isolation.worker.channel.Channel.run`."""
        try:
            channel = self._idle.pop()
        except IndexError:  # more runs are in flight than ever before
            channel = self._open()
        try:
            return channel.run(executable, output_names, feeds, seconds)
        finally:
            if channel.sound:
                self._idle.append(channel)
            else:
                self._drop(channel)

    def close_executable(self, number: int) -> None:
        """Release a model once the runs in flight have ended. A worker that takes too long is killed."""
        deadline = time.monotonic() + _CLOSE_SECONDS
        while len(self._idle) + 1 < len(self._channels) and time.monotonic() < deadline:
            time.sleep(0.001)
        try:
            self.ask("close", max(0.1, deadline - time.monotonic()), number=number)
        except (WorkerTimeout, WorkerDied):
            self.close()

    def close(self) -> None:
        """End the worker. Calls in flight raise :class:`isorun.errors.WorkerDied`."""
        self.process.end()
        while self._idle:
            self._drop(self._idle.pop())
        with self._asking:
            self._drop(self._main)

    def _forked(self) -> None:
        """In a forked process: leave the worker to its parent."""
        self.process.abandon()
        for channel in self._channels:
            channel.close()

    def _open(self) -> Channel:
        ours, theirs = portable.socket_pair()
        with theirs:
            try:
                wire.send(self.process.trunk, wire.CHANNEL, files=[theirs.fileno()])
            except wire.Closed:
                ours.close()
                raise self.process.died("while it was idle", DiedIdle) from None
        channel = Channel(ours, self.process)
        self._channels.add(channel)
        return channel

    def _drop(self, channel: Channel) -> None:
        self._channels.discard(channel)
        channel.close()


def _end(process: WorkerProcess, channels: set[Channel]) -> None:
    process.end()
    for channel in list(channels):  # at exit, other threads may still open and drop channels
        channel.close()
