"""Requests that arrive whether or not earlier ones are answered: rates and latencies under load.

MLPerf's LoadGen (``mlcommons-loadgen``) issues the requests of the scenarios ``single-stream``, ``server`` and
``offline``, and keeps its logs. In ``server``, requests arrive as a Poisson process, and a latency counts from the
scheduled arrival. LoadGen has no scenario for clients that wait for their answers (``closed``): those are threads.
"""

from __future__ import annotations

import asyncio
import queue
import re
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from time import perf_counter_ns
from typing import Any, Protocol

import numpy as np

from isorun import Session
from isorun.errors import BackendUnavailable
from isorun.types import Feeds
from isorun_matrix.jobs import Scenario

_PACKAGE = "mlcommons-loadgen"
_REQUESTS = 300  # minimum of a measurement: three are expected above its 99th percentile
_PERCENTILES = (50, 90, 99)
_STEP = 1.5  # of the rate, until a search has both ends
_PRECISION = 1.05  # the ratio of the ends at which a search stops
_STEPS = 15
_CONFIRMED = 2  # measurements at the rate that a search reports
_SUMMARY = "mlperf_log_summary.txt"
Done = Callable[[], None]


@dataclass(frozen=True)
class Trial:
    """One measurement under load.

    Attributes:
        rate: scheduled requests per second; ``None`` in other scenarios than ``server``.
        requests: how many were answered.
        requests_per_s: answered.
        p50_ms, p90_ms, p99_ms: latencies; ``None`` in ``offline``.
    """

    rate: float | None
    requests: int
    requests_per_s: float
    p50_ms: float | None
    p90_ms: float | None
    p99_ms: float | None


@dataclass(frozen=True)
class LoadFigures:
    """A cell in a scenario.

    Attributes:
        requests_per_s: for ``server``, the highest rate within the bound; 0 if no rate is.
        rows_per_s: rows in the answered requests.
        result: the measurement that it is from; ``None`` if no rate is within the bound.
        trials: all measurements, in order.
        generator: what issued the requests, with its version.
    """

    requests_per_s: float
    rows_per_s: float
    result: Trial | None
    trials: Sequence[Trial]
    generator: str


class Target(Protocol):
    """What answers requests."""

    def submit(self, index: int, done: Done) -> None:
        """Answer a request, whose number selects its feeds, and call ``done`` from any thread. Does not wait."""

    def close(self) -> None:
        """Stop; raises what a request raised."""


class SessionTarget:
    """Threads that call ``Session.run``, each with one request at a time, from one queue."""

    def __init__(self, session: Session, feeds: Sequence[Feeds], workers: int) -> None:
        self._session, self._feeds = session, feeds
        self._errors: list[BaseException] = []
        self._waiting: queue.SimpleQueue[tuple[int, Done] | None] = queue.SimpleQueue()
        self._threads = [threading.Thread(target=self._work, daemon=True) for _ in range(workers)]
        for thread in self._threads:
            thread.start()

    def submit(self, index: int, done: Done) -> None:
        self._waiting.put((index, done))

    def _work(self) -> None:
        while (request := self._waiting.get()) is not None:
            index, done = request
            try:
                if not self._errors:  # else the rest is answered at once, and the first error is raised
                    self._session.run(None, self._feeds[index % len(self._feeds)])
            except Exception as error:  # noqa: BLE001 - raised by close()
                self._errors.append(error)
            done()

    def close(self) -> None:
        for _ in self._threads:
            self._waiting.put(None)
        for thread in self._threads:
            thread.join()
        if self._errors:
            raise self._errors[0]


class SchedulerTarget:
    """``Session.arun``, which runs concurrent requests as :meth:`isorun.Session.warmup` measured to be best."""

    def __init__(self, session: Session, feeds: Sequence[Feeds]) -> None:
        session.warmup(feeds)
        self._session, self._feeds = session, feeds
        self._errors: list[BaseException] = []
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def submit(self, index: int, done: Done) -> None:
        given = self._feeds[index % len(self._feeds)]
        answer: Future[Any] = asyncio.run_coroutine_threadsafe(self._session.arun(None, given), self._loop)
        answer.add_done_callback(lambda answer: self._finish(answer, done))

    def _finish(self, answer: Future[Any], done: Done) -> None:
        if error := answer.exception():
            self._errors.append(error)
        done()

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        if self._errors:
            raise self._errors[0]


def measure(
    scenario: Scenario, target: Target, *, rows: int, sets: int, typical: float, seed: int, logs: Path
) -> LoadFigures:
    """Measure a target in a scenario.

    Args:
        scenario: what to measure.
        target: answers the requests.
        rows: of a request.
        sets: how many sets of feeds there are.
        typical: the time of a request alone, in seconds.
        seed: of the arrivals and of the order of the feeds.
        logs: the folder for LoadGen's logs.

    Raises:
        BackendUnavailable: the package of LoadGen is missing.
    """
    if scenario.scenario == "closed":
        trials = [_closed(scenario, target)]
        return _figures(trials, trials[0], rows, "threads")
    generator = _Generator(scenario, target, sets, seed, logs)
    if scenario.scenario != "server":
        trials = [generator.trial(None, typical)]
        return _figures(trials, trials[0], rows, generator.version)
    assert scenario.p99_ms is not None
    found, trials = search(lambda rate: generator.trial(rate, typical), 0.5 / typical, scenario.p99_ms)
    return _figures(trials, found, rows, generator.version)


def search(trial: Callable[[float], Trial], start: float, bound: float) -> tuple[Trial | None, list[Trial]]:
    """The highest rate whose 99th percentile is within a bound.

    The rate grows or shrinks from ``start`` until it is on both sides of the bound, then the interval is halved (in
    logarithms) until its ends are within 5 %. The lower end has to hold twice; if it does not, it shrinks by 5 %.

    Args:
        trial: measures at a rate, in requests per second.
        start: the first rate.
        bound: of ``p99_ms``.

    Returns:
        The measurement at that rate, ``None`` if there is none in 15 steps; and all measurements.
    """
    trials: list[Trial] = []

    def holds(rate: float) -> bool:
        trials.append(trial(rate))
        p99 = trials[-1].p99_ms
        return p99 is not None and p99 <= bound

    low = high = start
    if holds(start):
        while holds(high := low * _STEP) and len(trials) < _STEPS:
            low = high
    else:
        while not holds(low := high / _STEP):
            high = low
            if len(trials) >= _STEPS:
                return None, trials
    while high / low > _PRECISION:
        middle = (low * high) ** 0.5
        low, high = (middle, high) if holds(middle) else (low, middle)
    held = 1  # the search itself
    while held < _CONFIRMED:
        if holds(low):
            held += 1
        else:
            low, held = low / _PRECISION, 0
            if len(trials) >= 3 * _STEPS:
                return None, trials
    return trials[-1], trials


class _Generator:
    """LoadGen with the settings of a scenario."""

    def __init__(self, scenario: Scenario, target: Target, sets: int, seed: int, logs: Path) -> None:
        try:
            import mlperf_loadgen
        except ImportError as error:
            raise BackendUnavailable(
                "load", f"the package {_PACKAGE} is not installed", "Install it: pip install 'isorun[load]'"
            ) from error
        self._loadgen = mlperf_loadgen
        self.version = f"{_PACKAGE} {version(_PACKAGE)}"
        self._scenario, self._target, self._sets, self._seed, self._logs = scenario, target, sets, seed, logs
        self._count = 0

    def trial(self, rate: float | None, typical: float) -> Trial:
        """One measurement; its logs are in a folder of its own."""
        loadgen = self._loadgen
        self._count += 1
        folder = self._logs / f"loadgen-{self._count}"
        folder.mkdir(parents=True)
        output, logs = loadgen.LogOutputSettings(), loadgen.LogSettings()
        output.outdir, output.copy_summary_to_stdout = str(folder), False
        logs.log_output, logs.enable_trace = output, False
        system = loadgen.ConstructSUT(self._issue, lambda: None)
        library = loadgen.ConstructQSL(self._sets, self._sets, lambda _: None, lambda _: None)
        try:
            loadgen.StartTestWithLogSettings(system, library, self._settings(rate, typical), logs, "")
        finally:
            loadgen.DestroyQSL(library)
            loadgen.DestroySUT(system)
        return read_summary((folder / _SUMMARY).read_text(), rate)

    def _issue(self, samples: Sequence[Any]) -> None:
        for sample in samples:
            self._target.submit(sample.index, partial(self._complete, sample.id))

    def _complete(self, number: int) -> None:
        self._loadgen.QuerySamplesComplete([self._loadgen.QuerySampleResponse(number, 0, 0)])

    def _settings(self, rate: float | None, typical: float) -> Any:
        names = {"single-stream": "SingleStream", "server": "Server", "offline": "Offline"}
        settings = self._loadgen.TestSettings()
        settings.scenario = getattr(self._loadgen.TestScenario, names[self._scenario.scenario])
        settings.mode = self._loadgen.TestMode.PerformanceOnly
        settings.min_duration_ms = int(self._scenario.seconds * 1000)
        settings.min_query_count = 1 if self._scenario.scenario == "offline" else _REQUESTS
        settings.single_stream_expected_latency_ns = int(typical * 1e9)
        settings.offline_expected_qps = 1 / typical
        if rate is not None:
            settings.server_target_qps = rate
            settings.server_target_latency_ns = int((self._scenario.p99_ms or 0) * 1e6)
            settings.server_target_latency_percentile = 0.99
        seed = self._seed + self._count
        settings.qsl_rng_seed, settings.sample_index_rng_seed, settings.schedule_rng_seed = seed, seed + 1, seed + 2
        return settings


def read_summary(text: str, rate: float | None) -> Trial:
    """A measurement from LoadGen's summary."""
    values = {
        name.strip(): float(value)
        for name, value in re.findall(r"^\s*([^:\n]+?)\s*:\s*([0-9.eE+]+)\s*$", text, flags=re.MULTILINE)
    }
    percentiles = [values.get(f"{percentile}.00 percentile latency (ns)") for percentile in _PERCENTILES]
    offline = "Scenario : Offline" in text
    times = [None if offline or value is None else value / 1e6 for value in percentiles]
    rates = ("Completed samples per second", "Samples per second", "QPS w/o loadgen overhead")
    answered = next(values[name] for name in rates if name in values)
    processed = re.search(r"Processed (?:at least )?(\d+) queries", text)
    requests = int(processed[1]) if processed else int(values.get("min_query_count", 0))
    return Trial(rate, requests, answered, *times)


def _closed(scenario: Scenario, target: Target) -> Trial:
    """Clients that each wait for an answer before they send the next request."""
    assert scenario.clients is not None
    begin = perf_counter_ns()
    end = begin + int(scenario.seconds * 1e9)
    taken: list[list[int]] = [[] for _ in range(scenario.clients)]

    def client(number: int) -> None:
        answered = threading.Event()
        index = number
        while (start := perf_counter_ns()) < end:
            answered.clear()
            target.submit(index, answered.set)
            answered.wait()
            taken[number].append(perf_counter_ns() - start)
            index += len(taken)

    threads = [threading.Thread(target=client, args=(number,)) for number in range(scenario.clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seconds = (perf_counter_ns() - begin) / 1e9
    times = np.concatenate([np.array(each) for each in taken]) / 1e6
    p50, p90, p99 = (float(np.percentile(times, percentile)) for percentile in _PERCENTILES)
    return Trial(None, len(times), len(times) / seconds, p50, p90, p99)


def _figures(trials: Sequence[Trial], found: Trial | None, rows: int, generator: str) -> LoadFigures:
    answered = 0.0 if found is None else found.requests_per_s if found.rate is None else found.rate
    return LoadFigures(answered, answered * rows, found, trials, generator)


def target_of(session: Session, feeds: Sequence[Feeds], scenario: Scenario) -> Target:
    """What answers the requests of a scenario."""
    if scenario.through == "scheduler":
        return SchedulerTarget(session, feeds)
    return SessionTarget(session, feeds, scenario.workers)
