"""How many threads this process may use: what its CPU affinity and its cgroup's quota leave it.

Runtimes size their pools by the machine and ignore the quota of a container (onnxruntime issue 29510); the
threads above the quota then stall one another.
"""

from __future__ import annotations

import math
import os

import numpy as np

from isorun.system.cgroup import cpu_quota

MOST = 1024  # runtimes start as many as they are told to: a million hang them


def check(threads: object) -> None:
    """Refuse a number of threads that is none, before a runtime says so in its own words."""
    if threads is None:
        return
    if isinstance(threads, bool) or not (isinstance(threads, int | np.integer) and 1 <= threads <= MOST):
        raise ValueError(
            f"threads is {threads!r}; a run needs a whole number from 1 to {MOST}, and None takes what is there"
        )


def usable_cores() -> int:
    """The cores that this process may use at once, at least 1."""
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = cpu_quota()
    return max(1, affinity if quota is None else min(affinity, math.ceil(quota)))
