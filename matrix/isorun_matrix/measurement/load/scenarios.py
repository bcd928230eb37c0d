"""A cell in a load scenario: single measurements until its rate is known.

MLPerf's LoadGen (``mlcommons-loadgen``) issues the requests of the scenarios ``single-stream``, ``server`` and
``offline``, and keeps its logs. In ``server``, requests arrive as a Poisson process, and a latency counts from the
scheduled arrival. LoadGen has no scenario for clients that wait for their answers (``closed``): those are threads.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from time import perf_counter_ns

import numpy as np

from isorun.system.disturbance import Attempts
from isorun_matrix.measurement.load.figures import PERCENTILES, SLOTS, LoadFigures, Trial
from isorun_matrix.measurement.load.generator import Generator
from isorun_matrix.measurement.load.search import search
from isorun_matrix.measurement.load.targets import Target
from isorun_matrix.spec.load_scenario import TRIALS, Load

_REPEATS = 12


def measure(
    scenario: Load,
    target: Target,
    *,
    rows: int,
    sets: int,
    typical: float,
    seed: int,
    logs: Path,
    pause: Callable[[int], None],
) -> LoadFigures:
    """Measure a target in a scenario: ``server`` by a search, the others five times.

    Args:
        sets: how many sets of feeds there are.
        typical: the time of a request alone, in seconds.
        seed: of the arrivals and of the order of the feeds.
        logs: the folder for LoadGen's logs.
        pause: called before each measurement with the number of those that are left, so that other cells have theirs.

    Raises:
        IsorunError: the package of LoadGen is missing.
    """
    watched = _Watched(pause, TRIALS if scenario.scenario == "server" else SLOTS)
    if scenario.scenario == "closed":
        return _repeated(watched, lambda: _closed(scenario, target), rows, "threads")
    generator = Generator(scenario, target, sets, seed, logs)
    if scenario.scenario != "server":
        return _repeated(watched, lambda: generator.trial(None, typical), rows, generator.version)
    assert scenario.p99_ms is not None
    limit = search(lambda rate: watched(lambda: generator.trial(rate, typical)), 0.5 / typical, scenario.p99_ms, seed)
    if limit is None:
        return LoadFigures(0.0, 0.0, None, watched.trials, generator.version)
    return LoadFigures(limit.rate, limit.rate * rows, limit.nearest, watched.trials, generator.version, limit.between)


def _repeated(watched: _Watched, measure: Callable[[], Trial], rows: int, generator: str) -> LoadFigures:
    """Five measurements: the one with the middle rate, between the others."""
    low, *_, high = ordered = sorted((watched(measure) for _ in range(SLOTS)), key=lambda trial: trial.requests_per_s)
    middle = ordered[SLOTS // 2]
    rate = middle.requests_per_s
    between = low.requests_per_s, high.requests_per_s
    return LoadFigures(rate, rate * rows, middle, watched.trials, generator, between)


class _Watched:
    """Pauses before each measurement, and keeps all of them, disturbed ones too, which are repeated."""

    def __init__(self, pause: Callable[[int], None], turns: int) -> None:
        self.trials: list[Trial] = []
        self._attempts = Attempts(_REPEATS)
        self._pause, self._left = pause, turns

    def __call__(self, measure: Callable[[], Trial]) -> Trial:
        self._pause(self._left)
        self._left -= 1
        self.trials += [replace(trial, disturbed=disturbed) for trial, disturbed in self._attempts(measure)]
        return self.trials[-1]


def _closed(scenario: Load, target: Target) -> Trial:
    """Clients that each wait for an answer before they send the next request, and send at least one."""
    assert scenario.clients is not None
    begin = perf_counter_ns()
    end = begin + int(scenario.seconds / SLOTS * 1e9)
    taken: list[list[int]] = [[] for _ in range(scenario.clients)]

    def client(number: int) -> None:
        answered = threading.Event()
        index = number
        start = perf_counter_ns()
        while start < end or not taken[number]:
            answered.clear()
            target.submit(index, answered.set)
            answered.wait()
            taken[number].append(perf_counter_ns() - start)
            index += len(taken)
            start = perf_counter_ns()

    threads = [threading.Thread(target=client, args=(number,)) for number in range(scenario.clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seconds = (perf_counter_ns() - begin) / 1e9
    times = np.concatenate([np.array(part) for part in taken]) / 1e6
    p50, p90, p99 = (float(np.percentile(times, percentile)) for percentile in PERCENTILES)
    return Trial(None, len(times), len(times) / seconds, p50, p90, p99)
