"""What the control group leaves this process: cores and memory.

A group's files are ``cpu.max`` and ``memory.max`` (cgroup v2), or ``cpu.cfs_quota_us`` and ``memory.limit_in_bytes``
(v1). Every group above it has limits too: the tightest counts.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

ROOT = Path("/sys/fs/cgroup")
OWN = Path("/proc/self/cgroup")
_NO_LIMIT = 1 << 60  # v1 writes the most that its counter holds, rounded to pages


class Memory(NamedTuple):
    """A limit on memory.

    Attributes:
        limit: in bytes.
        room: what is left of it, in bytes; cached files that the kernel can drop count as free.
    """

    limit: int
    room: int


def cpu_quota(root: Path = ROOT, own: Path = OWN) -> float | None:
    """The CPU quota, in cores; ``None`` where there is no limit."""
    limits = [limit for folder in _groups("cpu", root, own) if (limit := _quota(folder)) is not None]
    return min(limits, default=None)


def memory(root: Path = ROOT, own: Path = OWN) -> Memory | None:
    """The limit on memory with the least room; ``None`` where there is no limit."""
    limits = [limit for folder in _groups("memory", root, own) if (limit := _memory(folder)) is not None]
    return min(limits, key=lambda limit: limit.room, default=None)


def _groups(controller: str, root: Path, own: Path) -> list[Path]:
    """The folders that may hold a controller's files for this process, from the root down."""
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
    except OSError:  # no limit can be set on this group
        return None
    return None if quota in ("max", "-1") else int(quota) / int(period)


def _memory(folder: Path) -> Memory | None:
    try:
        if (folder / "memory.max").is_file():
            names, droppable = ("memory.max", "memory.current"), "inactive_file"
        else:
            names, droppable = ("memory.limit_in_bytes", "memory.usage_in_bytes"), "total_inactive_file"
        limit, used = ((folder / name).read_text().strip() for name in names)
        statistics = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
    except OSError:  # no limit can be set on this group
        return None
    if limit == "max" or int(limit) >= _NO_LIMIT:
        return None
    return Memory(int(limit), int(limit) - int(used) + int(statistics.get(droppable, 0)))
