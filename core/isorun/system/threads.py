"""The number of threads that this process may use, from its CPU affinity and the quota of its control group.

Runtimes size their pools by the machine and ignore the quota of a container; threads above the quota stall one another.
"""

from __future__ import annotations

import math
import os

import numpy as np

from isorun.errors import InvalidArgument
from isorun.system.cgroup import cpu_quota

MOST = 1024  # runtimes start as many as requested: a million hang them


def check(threads: object) -> None:
    """Reject an invalid number of threads.

    Raises:
        InvalidArgument: it is neither ``None`` nor an integer from 1 to 1024.
    """
    if threads is None:
        return
    if isinstance(threads, bool) or not (isinstance(threads, int | np.integer) and 1 <= threads <= MOST):
        raise InvalidArgument(
            f"threads must be None (all usable cores) or an integer from 1 to {MOST}, got {threads!r}"
        )


def usable_cores() -> int:
    """The number of cores that this process may use at once, at least 1."""
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = cpu_quota()
    return max(1, affinity if quota is None else min(affinity, math.ceil(quota)))
