"""Measuring a session: how long each run takes, how much memory this process and its own have held, and whether they
had the processor when they wanted it."""

from __future__ import annotations

import gc
import itertools
import os
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter_ns

import numpy as np

from isorun import Session
from isorun.types import Feeds

_NS_PER_S = 1_000_000_000


def warm_up(session: Session, feeds: Sequence[Feeds], runs: int, seconds: float | None) -> int:
    """Run without measuring: ``runs`` times, or until ``seconds`` are over.

    Returns:
        How often it ran.
    """
    deadline = None if seconds is None else perf_counter_ns() + int(seconds * _NS_PER_S)
    for done, given in zip(range(runs), itertools.cycle(feeds), strict=False):
        if deadline is not None and perf_counter_ns() >= deadline:
            return done
        session.run(None, given)
    return runs


def latencies(session: Session, feeds: Sequence[Feeds], repetitions: int | None, seconds: float | None) -> np.ndarray:
    """The time of each call of ``session.run``, every output asked for; the feeds are taken in turn.

    Args:
        session: what is measured.
        feeds: one or more sets.
        repetitions: how many runs; ``None`` for as many as ``seconds`` allow, but each set of feeds at least once.
        seconds: how long.

    Returns:
        (runs,), int64, nanoseconds. Letting go of the outputs is not counted; Python's cyclic garbage collector
        is off meanwhile.
    """
    least = len(feeds) if repetitions is None else repetitions
    deadline = perf_counter_ns() + int((seconds or 0) * _NS_PER_S)
    samples: list[int] = []
    gc.collect()
    gc.disable()
    try:
        for given in itertools.cycle(feeds):
            start = perf_counter_ns()
            outputs = session.run(None, given)
            end = perf_counter_ns()
            del outputs
            samples.append(end - start)
            if len(samples) >= least and (repetitions is not None or end >= deadline):
                break
    finally:
        gc.enable()
    return np.array(samples, dtype=np.int64)


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
