"""The CPU quota of this process's control group.

It is in ``cpu.max`` (cgroup v2) or ``cpu.cfs_quota_us`` (v1). Parent groups have quotas too; the smallest applies.
"""

from __future__ import annotations

from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
OWN = Path("/proc/self/cgroup")


def cpu_quota(root: Path = ROOT, own: Path = OWN) -> float | None:
    """The CPU quota in cores; ``None`` if there is none."""
    quotas = [quota for folder in _groups(root, own) if (quota := _quota(folder)) is not None]
    return min(quotas, default=None)


def _groups(root: Path, own: Path) -> list[Path]:
    """The folders that may hold quotas for this process, from the root down."""
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
