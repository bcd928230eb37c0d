"""Memory of this process and its descendants, and the time that their threads ran or waited for a core."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

_STEAL, _BUSY = 7, (0, 1, 2, 5, 6)  # the places of stolen time, and of time at work, in the first line of /proc/stat


class Scheduled(NamedTuple):
    """What the kernel has counted for the living threads of this process and its descendants, in nanoseconds.

    Attributes:
        ran: time on a core; ``None`` where the kernel does not report it, as for the others.
        waited: time in which a thread could have run and had no core.
        stolen: time that a hypervisor gave the cores of this machine to others.
        busy: time in which the cores of this machine worked, for any process.
    """

    ran: int | None
    waited: int | None
    stolen: int | None
    busy: int | None


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
        return Scheduled(ran, waited, None, None)
    ticks, tick = [int(each) for each in first[1:]], 1_000_000_000 // os.sysconf("SC_CLK_TCK")
    return Scheduled(ran, waited, ticks[_STEAL] * tick, sum(ticks[each] for each in _BUSY) * tick)


def elapsed(before: int | None, after: int | None) -> int | None:
    """The growth of a counter; 0 if it shrank, as a thread that had counted has ended; ``None`` if unknown."""
    return None if before is None or after is None else max(0, after - before)


def share(before: int | None, after: int | None, whole: int) -> float | None:
    """The growth of a counter as a share of ``whole``, of the same unit; ``None`` if unknown."""
    grown = elapsed(before, after)
    return None if grown is None else grown / whole


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
