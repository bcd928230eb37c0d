"""The CPU quota and the memory limit of this process's control group.

They are in ``cpu.max`` and ``memory.max`` (cgroup v2), or in ``cpu.cfs_quota_us`` and ``memory.limit_in_bytes`` (v1).
Parent groups have limits too; the smallest applies.
"""

from __future__ import annotations

from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
OWN = Path("/proc/self/cgroup")


def cpu_quota(root: Path = ROOT, own: Path = OWN) -> float | None:
    """The CPU quota in cores; ``None`` if there is none."""
    quotas = [quota for folder in _groups("cpu", root, own) if (quota := _quota(folder)) is not None]
    return min(quotas, default=None)


def memory_limit(root: Path = ROOT, own: Path = OWN) -> int | None:
    """The memory limit in bytes; ``None`` if there is none."""
    limits = [limit for folder in _groups("memory", root, own) if (limit := _limit(folder)) is not None]
    return min(limits, default=None)


def _groups(controller: str, root: Path, own: Path) -> list[Path]:
    """The folders that may hold limits for this process, from the root down."""
    try:
        lines = own.read_text().splitlines()
    except OSError:  # no control groups on this system
        return []
    folders = [root, root / controller]
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        base = root / controller if controllers else root
        parts = [part for part in path.split("/") if part]
        folders += [base.joinpath(*parts[: depth + 1]) for depth in range(len(parts))]
    return folders


def _quota(folder: Path) -> float | None:
    try:
        if (folder / "cpu.max").is_file():
            quota, period = (folder / "cpu.max").read_text().split()
        else:
            quota = (folder / "cpu.cfs_quota_us").read_text().strip()
            period = (folder / "cpu.cfs_period_us").read_text().strip()
    except OSError:  # this group cannot have a quota
        return None
    return None if quota in ("max", "-1") else int(quota) / int(period)


def _limit(folder: Path) -> int | None:
    for name in ("memory.max", "memory.limit_in_bytes"):  # without a limit, "max" and the largest number of pages
        if (folder / name).is_file():
            limit = (folder / name).read_text().strip()
            return None if limit == "max" else int(limit)
    return None
