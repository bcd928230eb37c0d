"""Checks of the number of threads."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import islice
from typing import NamedTuple

import numpy as np
import pytest

from isorun import Session
from isorun.system.process_usage import processor_time, thread_cores
from isorun.system.threads import usable_cores
from isorun_conformance.checks.base import UNDECIDED, Checks, proves
from isorun_conformance.sample_models import Dense, SampleModel, dense

_PROCESSOR_SECONDS = 0.4  # that a measurement of threads needs
_SECONDS = 10
_MEASUREMENTS = 4
_RUNS = 50
_PART = 0.15  # of the processor time, which the second of two threads takes at least
_ALMOST_ALL = 0.77  # of the processor time, which as many threads as requested take
_AT_ONCE = 1.5  # cores, which two runs at once want
_LONG_RUN = 0.03  # seconds: shorter ones may keep Python's lock
_IDLE = 0.05  # of the processor time: a thread below waits for milliseconds to run for microseconds
_UNEVEN = ((3, 12), (1, 129), (5, 67), (33, 17))
_TOLERANCE = 0.3  # of a core, for what threads do beside the work, as waking each other


class Threads(Checks):
    """The number of threads, where it can be set or is fixed."""

    @proves("threads")
    @pytest.mark.skipif(sys.platform != "linux", reason="needs Linux, which counts the processor time of a thread")
    def test_no_more_threads_compute_than_declared(self) -> None:
        fewest = self._fewest_threads()
        model = dense("heavy")
        with self.under_test.open(model, threads=fewest) as session:
            assert session.provenance.threads == fewest
            for usage in _usages(session, model):
                assert usage.cores <= fewest + _TOLERANCE, (
                    f"with threads={fewest}, it kept {usage.cores:.1f} cores busy"
                )
                if sum(usage.shares[:fewest]) >= _ALMOST_ALL or usage.wanted <= fewest + _TOLERANCE:
                    break  # no others compute, or not at once

    @proves("threads")
    @pytest.mark.skipif(sys.platform != "linux", reason="needs Linux, which counts the processor time of a thread")
    def test_two_threads_compute_on_two_cores(self) -> None:
        """At most, and at least: a part of the work is done by two threads at once."""
        self._require_threads()
        self.under_test.require(self.under_test.config.device == "cpu", "work that the processor's cores do")
        if usable_cores() < 2:
            pytest.skip("needs two cores")
        model = Dense("heavy", False, 1024)
        with self.under_test.open(model, threads=1) as session:
            session.run(None, model.feeds())  # what a backend keeps of it is for one thread
        with self.under_test.open(model, threads=2) as session:
            measured = list(islice(_usages(session, model), _MEASUREMENTS))
        # On a busy machine, one thread may have done all work before the other one got a core.
        assert any(usage.shares[1] >= _PART and usage.wanted >= 1 + _TOLERANCE for usage in measured), (
            f"with threads=2, one thread took {measured[0].shares[0]:.0%} of the processor time: it computes alone"
        )
        cores = max(usage.cores for usage in measured)
        assert cores <= 2 + _TOLERANCE, f"with threads=2, it kept {cores:.1f} cores busy"

    @proves("threads")
    @pytest.mark.skipif(sys.platform != "linux", reason="needs Linux, which counts the processor time of a thread")
    def test_runs_on_their_callers_threads_do_not_wait_for_each_other(self) -> None:
        declared = self.under_test.capabilities
        self.under_test.require(declared.runs_on_caller and declared.sets_threads, "runs on the thread of their caller")
        if usable_cores() < 2:
            pytest.skip("needs two cores")
        model = Dense("heavy", False, 1024)
        with self.under_test.open(model, threads=1) as session, ThreadPoolExecutor(1) as pool:
            ended = threading.Event()
            future = pool.submit(_run_until, ended, session, model)
            try:
                measured = list(islice(_usages(session, model), _MEASUREMENTS))
            finally:
                ended.set()
            future.result()
        if max(usage.cores for usage in measured) >= 1 + _TOLERANCE:
            return
        # Two that wait for each other want a core each for the moment in which one wakes the other.
        if np.median([usage.wanted for usage in measured]) >= _AT_ONCE:
            pytest.skip(f"{UNDECIDED}: on this busy machine, two callers got no two cores")
        pytest.fail("of two callers of one session, one waits for the other, and runs_on_caller is declared")

    @proves("threads")
    @pytest.mark.skipif(sys.platform != "linux", reason="needs Linux, which says on which cores a thread may run")
    def test_threads_may_run_on_any_core(self) -> None:
        """Models that are each bound to the first core would share it, in one process or in several."""
        fewest, cores, model = self._fewest_threads(), os.sched_getaffinity(0), dense("heavy")
        before, narrow = set(thread_cores()), set()
        with self.under_test.open(model, threads=fewest) as session, ThreadPoolExecutor(1) as pool:
            running = pool.submit(_run_often, session, model)
            while not running.done():  # some are bound during a run only
                allowed = (cores for thread, cores in thread_cores().items() if thread not in before)
                narrow |= {tuple(sorted(allowed_cores)) for allowed_cores in allowed if allowed_cores < cores}
                time.sleep(0.002)
        assert not narrow, (
            f"with threads={fewest}, its threads are bound to the cores {sorted(narrow)} of {sorted(cores)}"
        )

    @proves("threads")
    def test_python_runs_while_a_model_does(self) -> None:
        """Other threads of the application, such as its event loop: a long run releases Python's lock (the GIL)."""
        model = Dense("heavy", False, 8192)
        feeds = model.feeds()
        with self.under_test.open(model) as session:
            session.run(None, feeds)
            for _ in range(_MEASUREMENTS):
                with _ticking() as ticks:
                    started = time.monotonic()
                    session.run(None, feeds)
                    seconds = time.monotonic() - started
                edge = seconds / 10
                if seconds < _LONG_RUN or any(started + edge < tick < started + seconds - edge for tick in ticks):
                    return
        pytest.fail(f"during runs of {seconds:.2f} s, no other thread of Python ran: run() must release the GIL")

    @proves("threads")
    def test_accuracy_with_any_number_of_threads(self) -> None:
        """Also at sizes that they cannot share alike."""
        self._require_threads()
        model = self.under_test.encoder("bert-2x128")
        for threads in (1, 2, usable_cores()):
            with self.under_test.open(model, threads=threads) as session:
                assert session.provenance.threads == threads
                for batch, sequence in _UNEVEN if self.under_test.capabilities.dynamic_shapes else _UNEVEN[:1]:
                    feeds = model.feeds(batch=batch, sequence=sequence)
                    what = f"{batch} x {sequence} with threads={threads}"
                    self.under_test.assert_accurate(model, session, feeds, what=what)

    def _fewest_threads(self) -> int:
        """One if the number can be set, or the fixed number."""
        declared = self.under_test.capabilities
        fewest = 1 if declared.sets_threads else declared.fixed_threads
        self.under_test.require(fewest, "a number of threads")
        assert fewest is not None
        if usable_cores() <= fewest:
            pytest.skip(f"needs {fewest + 1} cores")
        return fewest

    def _require_threads(self) -> None:
        self.under_test.require(self.under_test.capabilities.sets_threads, "a number of threads that can be set")


@contextmanager
def _ticking() -> Iterator[list[float]]:
    """The times at which another thread of Python runs, a thousand times a second if it can."""
    ticks: list[float] = []
    ended = threading.Event()

    def tick() -> None:
        while not ended.wait(0.001):
            ticks.append(time.monotonic())

    with ThreadPoolExecutor(1) as pool:
        pool.submit(tick)
        try:
            yield ticks
        finally:
            ended.set()


def _run_often(session: Session, model: SampleModel) -> None:
    feeds = model.feeds()
    for _ in range(_RUNS):
        session.run(None, feeds)


def _run_until(ended: threading.Event, session: Session, model: SampleModel) -> None:
    feeds = model.feeds()
    while not ended.is_set():
        session.run(None, feeds)


class _Usage(NamedTuple):
    """What the threads of this process and its children did during some seconds of runs.

    Attributes:
        cores: the cores that they kept busy. Threads that compute one after another, as those of an engine's pool, keep
            one busy, and on a busy machine they all get less.
        shares: the part of each thread in the processor time, from the busiest; ended threads together.
        wanted: the cores that they kept busy or waited for. More than they need: a thread that wakes another one and
            then waits to go to sleep counts too.
    """

    cores: float
    shares: list[float]
    wanted: float


def _usages(session: Session, model: SampleModel) -> Iterator[_Usage]:
    """Measure runs of a session, again and again for some seconds."""
    feeds = model.feeds()
    session.run(None, feeds)
    deadline = time.monotonic() + _SECONDS
    while time.monotonic() < deadline:
        used, seconds, before = 0.0, 0.0, processor_time()
        started = time.monotonic()
        while used < _PROCESSOR_SECONDS and time.monotonic() < deadline:
            pause = time.monotonic() + 0.2  # reading the times takes processor time too
            while time.monotonic() < pause:
                session.run(None, feeds)
            (total, threads), seconds = processor_time(), time.monotonic() - started
            used = total - before[0]
        if used < _PROCESSOR_SECONDS:
            break
        usage = [np.subtract(times, before[1].get(thread, (0, 0))) for thread, times in threads.items()]
        ran = sorted((ran for ran, _ in usage), reverse=True)
        shares = [part / used for part in [*ran, 0, max(0, used - sum(ran))]]
        yield _Usage(
            used / seconds, shares, (used + sum(wait for part, wait in usage if part > used * _IDLE)) / seconds
        )
    pytest.skip(f"{UNDECIDED}: in {_SECONDS} s on this busy machine, threads got too little time to tell what they do")
