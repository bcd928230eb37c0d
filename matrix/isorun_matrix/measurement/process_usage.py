"""What this process and those that it started use: memory, and the time that their threads waited for a core."""

from __future__ import annotations

import os
from pathlib import Path


def waited_ns() -> int | None:
    """How long the threads of this process, and of those below it, could have run but had no core, in nanoseconds.

    That of the threads that are alive, since each was made; ``None`` where the system does not tell.
    """
    waited = None
    for process in family():
        for path in Path(f"/proc/{process}/task").glob("*/schedstat"):
            try:
                waited = (waited or 0) + int(path.read_text().split()[1])
            except OSError:  # the thread has just ended
                continue
    return waited


def resident_mib() -> float:
    """The memory of this process that is in RAM now, files that it has mapped included."""
    return _status("VmRSS")


def peak_resident_mib() -> float:
    """The most that :func:`resident_mib` has been since this program started, and the same of each process below it.

    ``getrusage`` does not say this: its figure begins with the size of the process that launched this one.
    """
    return sum(_status("VmHWM", process) for process in family())


def family() -> list[int]:
    """The ids of this process and of those that it has started and that are alive, such as a session's worker."""
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, parent = stat.read_text().rpartition(")")[2].split()[:2]
        except OSError:  # it has just ended
            continue
        if state != "Z":
            parents[int(stat.parent.name)] = int(parent)
    found = [os.getpid()]
    for process in found:  # grows meanwhile
        found += [child for child, parent in parents.items() if parent == process]
    return found


def _status(name: str, process: int | str = "self") -> float:
    path = Path(f"/proc/{process}/status")
    for line in path.read_text().splitlines():
        key, _, value = line.partition(":")
        if key == name:
            return int(value.split()[0]) / 1024
    raise OSError(f"{path} has no {name}")
