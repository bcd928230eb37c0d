"""The measured runs of a process, in turns between which other processes measure theirs.

What slows down the machine for a while then slows down all cells that are compared, not the one that happens to run.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from time import perf_counter_ns

from isorun.system.disturbance import Scheduled, is_disturbed, scheduled
from isorun.system.threads import usable_cores
from isorun_matrix.measurement.energy import Counters
from isorun_matrix.measurement.timing import TimedRuns

_MIN_RUNS = 3  # in a turn, on average; else there are fewer turns
_TICK = 10**7  # nanoseconds, in which the kernel counts stolen time
_NOTHING = Scheduled(0, 0, 0, 0)
_MAX_DISCARDED = 5 * 10**9  # nanoseconds of disturbed turns


@dataclass(frozen=True)
class Turn:
    """How much to measure: at least ``runs`` runs, for at least so many seconds."""

    runs: int
    seconds: float


def divide(turns: int, repetitions: int | None, seconds: float | None, *, feeds: int, typical: float) -> list[Turn]:
    """The turns of a process.

    Args:
        turns: how many at most.
        repetitions: how many runs in all; ``None`` for as many as ``seconds`` allow, but each set of feeds at least
            once.
        seconds: how long in all.
        feeds: how many sets of feeds there are.
        typical: about how long a run takes, in nanoseconds.
    """
    if repetitions is not None:
        count = max(1, min(turns, repetitions // _MIN_RUNS))
        ends = [repetitions * index // count for index in range(count + 1)]
        return [Turn(end - start, 0.0) for start, end in itertools.pairwise(ends)]
    assert seconds is not None
    runs = max(feeds, int(seconds * 1e9 / typical))
    count = max(1, min(turns, runs // _MIN_RUNS))
    return [Turn(-(-feeds // count), seconds / count)] * count


@dataclass
class Usage:
    """What was counted while a process measured: by the kernel, and how long that took, in nanoseconds; and the energy
    in joules."""

    counted: Scheduled = _NOTHING
    duration: int = 0
    joules: float = 0.0

    def add(self, counted: Scheduled, duration: int, joules: float) -> None:
        """Add a turn."""
        self.counted = self.counted.plus(counted)
        self.duration += duration
        self.joules += joules

    def shares(self, threads: int | None) -> tuple[float | None, float | None]:
        """The share of the time in which threads, by default as many as there are usable cores, waited for a core, and
        that which a hypervisor took."""
        _, waited, _, _ = self.counted.shares(self.duration * (threads or usable_cores()))
        _, _, stolen, _ = self.counted.shares(self.duration * (os.cpu_count() or 1))
        return waited, stolen


def measure(
    runs: TimedRuns,
    turns: Sequence[Turn],
    threads: int | None,
    processes: Sequence[int],
    usage: Usage,
    counters: Counters,
) -> Iterator[int]:
    """Measure the turns, and yield before each how many are left. A turn that was disturbed is measured again, for five
    seconds in all at most.

    Args:
        threads: as for :meth:`Usage.shares`.
        processes: this one and its descendants.
        usage: receives what was counted in all turns.
        counters: of energy.
    """
    left = _MAX_DISCARDED
    for index, turn in enumerate(turns):
        yield len(turns) - index
        while True:
            roll_back = runs.checkpoint()
            energy, before, start = counters.read(), scheduled(processes), perf_counter_ns()
            runs.measure(turn.runs, turn.seconds)
            duration, counted = perf_counter_ns() - start, scheduled(processes).since(before)
            joules = counters.since(energy)
            if left < duration or not _is_disturbed(counted, duration, threads):
                break
            roll_back()
            left -= duration
        usage.add(counted, duration, joules)


def _is_disturbed(counted: Scheduled, duration: int, threads: int | None) -> bool:
    # A turn can be so short that one tick of stolen time is a large share of it, which says nothing.
    stolen = None if counted.stolen is None else max(0, counted.stolen - _TICK)
    return is_disturbed(*Usage(counted._replace(stolen=stolen), duration).shares(threads))
