"""How many threads this process may use: what its CPU affinity and its cgroup's quota leave it.

Runtimes size their pools by the machine and ignore the quota of a container (onnxruntime issue 29510); the
threads above the quota then stall one another.
"""

from __future__ import annotations

import math
import os

from isorun.cgroup import cpu_quota


def usable_cores() -> int:
    """The cores that this process may use at once, at least 1."""
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = cpu_quota()
    return max(1, affinity if quota is None else min(affinity, math.ceil(quota)))
