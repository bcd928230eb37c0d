"""Executables of different shapes, bounded in number and memory. The least recently used are closed.

An executable is in use by the threads that run it, and is closed only when there are none. A thread that needs another
one while all are in use waits, so the bounds hold at any time, except that one executable may exceed the memory alone.
"""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Generic, TypeVar

from isorun.system import threads

_T = TypeVar("_T")
_K = TypeVar("_K", bound=Hashable)

_logger = logging.getLogger("isorun")


@dataclass(eq=False, slots=True)
class _Entry(Generic[_T]):
    """One executable.

    Attributes:
        executable: ``None`` while a thread compiles or closes it.
        size: in bytes.
        users: the number of threads that use it.
        seconds: the time of its compilation.
        closed: whether its last user has to close it.
    """

    executable: _T | None = None
    size: int = 0
    users: int = 1
    seconds: float = 0.0
    closed: bool = False


class ExecutablePool(Generic[_K, _T]):
    """Least recently used executables by key.

    Args:
        name: what messages call the backend.
        memory: the maximum number of bytes; ``None`` for no limit.

    Attributes:
        evicted: how many were closed to make room.
    """

    def __init__(self, name: str, limit: int, memory: int | None, close: Callable[[_T], object]) -> None:
        self._name, self._limit, self._memory, self._close = name, limit, memory, close
        self._entries: OrderedDict[_K, _Entry[_T]] = OrderedDict()
        self._changed = threads.Condition()
        self.evicted: int = 0

    @contextmanager
    def using(
        self, key: _K, compile_one: Callable[[], tuple[_T, int]], alternative: Callable[[_K], float | None]
    ) -> Iterator[tuple[_K, _T]]:
        """Use the executable of a key, compiled if there is none. Yields the key of the one that is used, and itself.

        If there is no room for another one, the best alternative is used, or else the least recently used is closed.

        Args:
            compile_one: returns one and its size in bytes.
            alternative: how much worse the executable of another key is; ``None`` if it will not do.
        """
        key, entry = self._acquire(key, compile_one, alternative)
        assert entry.executable is not None
        try:
            yield key, entry.executable
        finally:
            with self._changed:
                entry.users -= 1
                close = entry.closed and not entry.users
                self._changed.notify_all()
            if close:
                self._close(entry.executable)

    def compiled(self) -> dict[_K, float]:
        """The keys of the executables, the most recently used last, with the seconds that their compilation took."""
        with self._changed:
            return {key: entry.seconds for key, entry in self._entries.items() if entry.executable is not None}

    def discard(self, matches: Callable[[_K], bool]) -> None:
        """Close the executables of some keys; those in use are closed by their last user."""
        with self._changed:
            entries = [self._entries.pop(key) for key in list(self._entries) if matches(key)]
            for entry in entries:
                entry.closed = True
            idle = [entry.executable for entry in entries if not entry.users]
            self._changed.notify_all()
        for executable in idle:
            if executable is not None:
                self._close(executable)

    def unlock_after_fork(self) -> None:
        """Forget the threads that this process does not have."""
        self._changed = threads.Condition()
        for key, entry in list(self._entries.items()):
            entry.users = 0
            if entry.executable is None:
                del self._entries[key]

    def _acquire(
        self, key: _K, compile_one: Callable[[], tuple[_T, int]], alternative: Callable[[_K], float | None]
    ) -> tuple[_K, _Entry[_T]]:
        while True:
            with self._changed:
                entry = self._entries.get(key)
                if entry is not None and entry.executable is not None:
                    return self._use(key, entry)
                if entry is None and not self._is_full():
                    entry = self._entries[key] = _Entry()
                    break
                if entry is None and (substitute := self._best(alternative)) is not None:
                    return self._use(substitute, self._entries[substitute])
                idle = None if entry is not None else self._least_recently_used()
                if idle is None:
                    self._changed.wait()
                    continue
                executable, self._entries[idle].executable = self._entries[idle].executable, None
            self._evict(idle, executable, key)
        return key, self._compiled(key, entry, compile_one)

    def _use(self, key: _K, entry: _Entry[_T]) -> tuple[_K, _Entry[_T]]:
        entry.users += 1
        self._entries.move_to_end(key)
        return key, entry

    def _is_full(self) -> bool:
        """Whether another executable, if it is as large as the largest, would exceed a bound."""
        sizes = [entry.size for entry in self._entries.values()]
        exceeds = self._memory is not None and sum(sizes) + max(sizes, default=0) > self._memory
        return bool(sizes) and (len(sizes) >= self._limit or exceeds)

    def _best(self, alternative: Callable[[_K], float | None]) -> _K | None:
        costs = {key: alternative(key) for key, entry in self._entries.items() if entry.executable is not None}
        usable = {key: cost for key, cost in costs.items() if cost is not None}
        return min(usable, key=usable.__getitem__, default=None)

    def _least_recently_used(self) -> _K | None:
        entries = self._entries.items()
        return next((key for key, entry in entries if entry.executable is not None and not entry.users), None)

    def _evict(self, key: _K, executable: _T | None, wanted: _K) -> None:
        try:
            if executable is not None:
                self._close(executable)
        finally:
            with self._changed:
                self._entries.pop(key, None)
                self.evicted += 1
                first = self.evicted == 1
                self._changed.notify_all()
        _logger.log(
            logging.WARNING if first else logging.INFO,
            "%s: the executable for %s was closed to compile one for %s, for which a request waited. Use fewer shapes, "
            "or warm up with the largest",
            self._name,
            key,
            wanted,
        )

    def _compiled(self, key: _K, entry: _Entry[_T], compile_one: Callable[[], tuple[_T, int]]) -> _Entry[_T]:
        start = time.perf_counter()
        try:
            executable, size = compile_one()
        except BaseException:
            with self._changed:
                if self._entries.get(key) is entry:
                    del self._entries[key]
                self._changed.notify_all()
            raise
        with self._changed:
            entry.executable, entry.size, entry.seconds = executable, size, time.perf_counter() - start
            self._changed.notify_all()
        _logger.info("%s: compiled the shape %s in %.2f s", self._name, key, entry.seconds)
        return entry
