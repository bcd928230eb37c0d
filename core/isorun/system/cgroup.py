"""The CPU quota of this process's control group, and what is left of its memory limit.

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


def memory_left(root: Path = ROOT, own: Path = OWN) -> int | None:
    """How much of the memory limit is not in use, in bytes; ``None`` without a limit. Cached files are not in use."""
    amounts = [left for folder in _groups("memory", root, own) if (left := _memory_left(folder)) is not None]
    return min(amounts, default=None)


def _groups(controller: str, root: Path, own: Path) -> list[Path]:
    """The folders that may hold limits for this process, from the root down."""
    try:
        lines = own.read_text(encoding="utf-8").splitlines()
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
            quota, period = (folder / "cpu.max").read_text(encoding="utf-8").split()
        else:
            quota = (folder / "cpu.cfs_quota_us").read_text(encoding="utf-8").strip()
            period = (folder / "cpu.cfs_period_us").read_text(encoding="utf-8").strip()
    except OSError:  # this group cannot have a quota
        return None
    return None if quota in ("max", "-1") else int(quota) / int(period)


def _memory_left(folder: Path) -> int | None:
    names = ("max", "current", "inactive_file")
    if not (folder / "memory.max").is_file():
        names = ("limit_in_bytes", "usage_in_bytes", "total_inactive_file")
    try:
        limit, used = ((folder / f"memory.{name}").read_text(encoding="utf-8").strip() for name in names[:2])
        lines = (folder / "memory.stat").read_text(encoding="utf-8").splitlines()
    except OSError:  # this group cannot have a limit
        return None
    cached = next((int(line.split()[1]) for line in lines if line.startswith(f"{names[2]} ")), 0)
    return None if limit == "max" else max(0, int(limit) - int(used) + cached)
