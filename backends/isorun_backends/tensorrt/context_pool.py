"""The contexts of an executable. Each has buffers for its profile's maximum shapes, so their number is bounded."""

from __future__ import annotations

import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from isorun.plugin import BackendFailed
from isorun_backends.tensorrt.execution_contexts import ContextKey, ExecutionContext


class ContextPool:
    """The contexts of one executable, created as runs need them: up to ``limit`` of a profile, and one of a recorded
    shape. Further runs wait for one."""

    def __init__(self, name: str, create: Callable[[ContextKey], ExecutionContext], limit: int) -> None:
        self._name, self._create, self._limit = name, create, limit
        self._changed = threading.Condition()
        self._idle: defaultdict[ContextKey, list[ExecutionContext]] = defaultdict(list)
        self._created: Counter[ContextKey] = Counter()
        self._closed = False

    @contextmanager
    def taken(self, key: ContextKey) -> Iterator[ExecutionContext]:
        """A context for one run. One whose run fails is not used again. Raises ``BackendFailed`` if the pool is
        closed."""
        context = self._reserve(key)
        try:
            if context is None:
                context = self._create(key)
            yield context
        except BaseException:
            self._return(key, None)
            raise
        self._return(key, context)

    def close(self) -> None:
        """Release all contexts; those of runs in flight, with the end of the run."""
        with self._changed:
            self._closed = True
            self._idle.clear()
            self._changed.notify_all()

    def _reserve(self, key: ContextKey) -> ExecutionContext | None:
        """An idle context; ``None`` if the caller is to create one."""
        limit = self._limit if key.shapes is None else 1
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._idle[key] or self._created[key] < limit)
            if self._closed:
                raise BackendFailed(f"{self._name}: the session was closed")
            if self._idle[key]:
                return self._idle[key].pop()
            self._created[key] += 1
            return None

    def _return(self, key: ContextKey, context: ExecutionContext | None) -> None:
        with self._changed:
            if context is None:
                self._created[key] -= 1
            elif not self._closed:
                self._idle[key].append(context)
            self._changed.notify_all()
