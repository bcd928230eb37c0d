"""Whether other programs, or other virtual machines, disturbed a measurement."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, TypeVar

from isorun.system.process_usage import family

Result = TypeVar("Result")

DISTURBED = 0.05
"""The share of the cores' time that makes a measurement doubtful if others had it."""

_STEAL, _BUSY = 7, (0, 1, 2, 5, 6)  # the places of stolen time, and of time at work, in the first line of /proc/stat
_SCHED = 2  # CPUCLOCK_SCHED: the clock of a process's time on cores


class Scheduled(NamedTuple):
    """What the kernel has counted for this process and its living descendants, in nanoseconds.

    Attributes:
        ran: time on a core, of ended threads too; ``None`` where the kernel does not report it, as for the others.
        waited: time in which a living thread could have run and had no core.
        stolen: time that a hypervisor gave the cores of this machine to others.
        busy: time in which the cores of this machine worked, for any process.
    """

    ran: int | None
    waited: int | None
    stolen: int | None
    busy: int | None

    def since(self, before: Scheduled) -> Scheduled:
        """What was counted since then; 0 for a counter that shrank, as a thread that had counted has ended."""
        return self._with(before, lambda now, then: max(0, now - then))

    def plus(self, other: Scheduled) -> Scheduled:
        """The sums of what was counted in two times."""
        return self._with(other, int.__add__)

    def shares(self, whole: int) -> tuple[float | None, ...]:
        """Each counter as a share of ``whole`` nanoseconds."""
        return tuple(None if count is None else count / whole for count in self)

    def _with(self, other: Scheduled, combine: Callable[[int, int], int]) -> Scheduled:
        pairs = zip(self, other, strict=True)
        return Scheduled(*(None if mine is None or theirs is None else combine(mine, theirs) for mine, theirs in pairs))


def scheduled(processes: Sequence[int] | None = None) -> Scheduled:
    """The counters now.

    Args:
        processes: from :func:`isorun.system.process_usage.family`, which takes most of the time here; ``None`` to look
            for them again.
    """
    ran = waited = None
    if not sys.platform.startswith("linux"):
        return Scheduled(None, None, None, None)
    for process in family() if processes is None else processes:
        try:
            ran = (ran or 0) + time.clock_gettime_ns(~process << 3 | _SCHED)  # MAKE_PROCESS_CPUCLOCK of Linux
        except OSError:  # the process has ended
            continue
        for path in Path(f"/proc/{process}/task").glob("*/schedstat"):
            try:
                waited = (waited or 0) + int(path.read_text(encoding="utf-8").split()[1])
            except OSError:  # the thread has ended
                continue
    try:
        first = Path("/proc/stat").read_text(encoding="utf-8").splitlines()[0].split()
    except OSError:
        return Scheduled(ran, waited, None, None)
    ticks, tick = [int(field) for field in first[1:]], 1_000_000_000 // os.sysconf("SC_CLK_TCK")
    return Scheduled(ran, waited, ticks[_STEAL] * tick, sum(ticks[field] for field in _BUSY) * tick)


def is_disturbed(waited: float | None, stolen: float | None) -> bool:
    """Whether threads waited for a core, or a hypervisor took the cores, for so long that times are doubtful.

    Args:
        waited: as a share of the threads' time. It means nothing with more threads than cores: use :class:`Attempts`.
        stolen: as a share of the time of all cores.
    """
    return max(waited or 0, stolen or 0) >= DISTURBED


class Attempts:
    """Repeats measurements beside which others had 5 % of the cores' time or more.

    It also works for processes with more threads than cores, which wait for each other.

    Args:
        repeats: how many repetitions there may be, of all measurements together.
    """

    def __init__(self, repeats: int) -> None:
        self._left = repeats

    def __call__(self, measure: Callable[[], Result]) -> Iterator[tuple[Result, bool]]:
        """Every result and whether it is disturbed; the last one is the best there is."""
        while True:
            before, start = scheduled(), time.perf_counter_ns()
            result = measure()
            whole, counted = (time.perf_counter_ns() - start) * (os.cpu_count() or 1), scheduled().since(before)
            ran, _, stolen, busy = counted.shares(whole)
            disturbed = ran is not None and busy is not None and busy - ran + (stolen or 0) >= DISTURBED
            yield result, disturbed
            if not disturbed or not self._left:
                return
            self._left -= 1
