"""What this process and those that it started hold, as Linux tells it."""

from __future__ import annotations

import os
from pathlib import Path


def family() -> list[int]:
    """This process and all below it."""
    return [os.getpid(), *_below(os.getpid())]


def _below(pid: int) -> list[int]:
    found = []
    for task in Path(f"/proc/{pid}/task").glob("*"):
        try:
            children = (task / "children").read_text().split()
        except OSError:  # it has ended meanwhile
            continue
        for child in children:
            found += [int(child), *_below(int(child))]
    return found


def resident_mib() -> float:
    """Resident memory of the family, in MiB."""
    pages = 0
    for pid in family():
        try:
            pages += int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        except OSError:
            continue
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def open_files() -> list[str]:
    """What the family holds open, a name for each descriptor."""
    found = []
    for pid in family():
        for descriptor in Path(f"/proc/{pid}/fd").glob("*"):
            try:
                found.append(str(descriptor.readlink()))
            except OSError:
                continue
    return found


def processor_ticks() -> tuple[int, dict[tuple[int, str], int]]:
    """Processor time of the family, threads that have ended included, and of each thread by (process, thread).

    In ticks of the system, of 10 ms.
    """
    total, by_thread = 0, {}
    for pid in family():
        process = Path(f"/proc/{pid}")
        total += _ticks(process / "stat")
        for task in process.glob("task/*"):
            by_thread[pid, task.name] = _ticks(task / "stat")
    return total, by_thread


def _ticks(path: Path) -> int:
    try:
        fields = path.read_text().rpartition(")")[2].split()
    except OSError:
        return 0
    return int(fields[11]) + int(fields[12])


def threads() -> int:
    """How many threads the family has."""
    return sum(len(list(Path(f"/proc/{pid}/task").glob("*"))) for pid in family())
