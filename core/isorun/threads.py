"""How many threads this process may use: what its CPU affinity and its cgroup's quota leave it.

Runtimes size their pools by the machine and ignore the quota of a container (onnxruntime issue 29510); the
threads above the quota then stall one another.
"""

from __future__ import annotations

import math
import os
from pathlib import Path

_CGROUP = Path("/sys/fs/cgroup")
_SELF = Path("/proc/self/cgroup")


def usable_cores() -> int:
    """The cores that this process may use at once, at least 1."""
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = cgroup_quota()
    return max(1, affinity if quota is None else min(affinity, math.ceil(quota)))


def cgroup_quota(root: Path = _CGROUP, own: Path = _SELF) -> float | None:
    """The CPU quota of this process's control group, in cores; ``None`` where there is no limit.

    Reads ``cpu.max`` (cgroup v2) or ``cpu.cfs_quota_us`` (v1) of the group and of every group above it:
    the tightest one counts.
    """
    limits = [limit for folder in _groups(root, own) if (limit := _limit(folder)) is not None]
    return min(limits, default=None)


def _groups(root: Path, own: Path) -> list[Path]:
    try:
        lines = own.read_text().splitlines()
    except OSError:  # no control groups on this system
        return []
    folders = [root, root / "cpu"]
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        base = root / "cpu" if controllers else root
        parts = [part for part in path.split("/") if part]
        folders += [base.joinpath(*parts[: depth + 1]) for depth in range(len(parts))]
    return folders


def _limit(folder: Path) -> float | None:
    try:
        if (folder / "cpu.max").is_file():
            quota, period = (folder / "cpu.max").read_text().split()
        else:
            quota = (folder / "cpu.cfs_quota_us").read_text().strip()
            period = (folder / "cpu.cfs_period_us").read_text().strip()
    except OSError:  # no limit can be set on this group
        return None
    return None if quota in ("max", "-1") else int(quota) / int(period)
