"""Memory of this process and its descendants, and the time that their threads ran or waited for a core."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

_STEAL = 7  # the place of stolen time in the first line of /proc/stat


class Scheduled(NamedTuple):
    """What the kernel has counted for the living threads of this process and its descendants, in nanoseconds.

    Attributes:
        ran: time on a core; ``None`` where the kernel does not report it, as for the others.
        waited: time in which a thread could have run and had no core.
        stolen: time that a hypervisor gave the cores of this machine to others.
    """

    ran: int | None
    waited: int | None
    stolen: int | None


def scheduled() -> Scheduled:
    """The counters now."""
    ran = waited = None
    for process in family():
        for path in Path(f"/proc/{process}/task").glob("*/schedstat"):
            try:
                on_core, waiting, _ = map(int, path.read_text().split())
            except OSError:  # the thread has ended
                continue
            ran, waited = (ran or 0) + on_core, (waited or 0) + waiting
    try:
        first = Path("/proc/stat").read_text().splitlines()[0].split()
    except OSError:
        return Scheduled(ran, waited, None)
    return Scheduled(ran, waited, int(first[1 + _STEAL]) * (1_000_000_000 // os.sysconf("SC_CLK_TCK")))


def resident_mib() -> float:
    """The memory of this process in RAM now, including mapped files."""
    return _status("VmRSS")


def peak_resident_mib() -> float:
    """The sum of the peaks of :func:`resident_mib` of this process and its descendants.

    ``getrusage`` is no alternative: its figure starts with the size of the process that launched this one.
    """
    return sum(_status("VmHWM", process) for process in family())


def family() -> list[int]:
    """The ids of this process and its living descendants, such as a session's worker."""
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, parent = stat.read_text().rpartition(")")[2].split()[:2]
        except OSError:  # it has ended
            continue
        if state != "Z":
            parents[int(stat.parent.name)] = int(parent)
    found = [os.getpid()]
    for process in found:  # grows while it is iterated
        found += [child for child, parent in parents.items() if parent == process]
    return found


def _status(name: str, process: int | str = "self") -> float:
    path = Path(f"/proc/{process}/status")
    for line in path.read_text().splitlines():
        key, _, value = line.partition(":")
        if key == name:
            return int(value.split()[0]) / 1024
    raise OSError(f"{path} has no {name}")
