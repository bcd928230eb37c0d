"""Starting threads, and the number that this process may use, from its CPU affinity and the quota of its control group.

Runtimes size their pools by the machine and ignore the quota of a container; threads above the quota stall one another.
"""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Callable
from numbers import Integral
from operator import attrgetter
from typing import Any

from isorun.errors import IsorunError
from isorun.system import portable
from isorun.system.arguments import is_number, number_error
from isorun.system.cgroup import cpu_quota

MOST = 1024  # runtimes start as many as requested: a million hang them


class Condition(threading.Condition):
    """A condition that other threads can still use after a handler of a signal raised on the main thread.

    Python's own ``with condition`` runs Python code between the lock and the block, where a handler may run: nothing
    releases the lock then. The lock's methods, in C, are not interrupted.
    """

    __enter__ = property(attrgetter("_lock.__enter__"))
    __exit__ = property(attrgetter("_lock.__exit__"))

    def notify(self, n: int = 1) -> None:
        try:
            super().notify(n)
        except BaseException:  # a thread that was notified may still be listed, for which the next call would count
            self.notify_all()
            raise


def check(threads: Any) -> int | None:
    """The number of threads; ``InvalidArgument`` if it is neither ``None`` nor an integer from 1 to 1024."""
    if threads is None:
        return None
    if not (is_number(threads, Integral) and 1 <= threads <= MOST):
        raise number_error(threads)(
            f"threads must be None (all usable cores) or an integer from 1 to {MOST}, got {threads!r}"
        )
    return int(threads)


def start(target: Callable[..., object], *arguments: Any, name: str, daemon: bool = True) -> threading.Thread:
    """Start a thread. Raises ``IsorunError`` if the system starts no further one."""
    thread = threading.Thread(target=target, args=arguments, name=name, daemon=daemon)
    try:
        thread.start()
    except (RuntimeError, MemoryError) as error:
        raise IsorunError(
            f"The system starts no further thread: {error}. Raise the limit of processes or of memory that this "
            "process runs under"
        ) from error
    return thread


def usable_cores() -> int:
    """The number of cores that this process may use at once, at least 1."""
    cores, quota = portable.cores(), cpu_quota()
    affinity = (os.cpu_count() or 1) if cores is None else len(cores)
    return max(1, affinity if quota is None else min(affinity, math.ceil(quota)))
