"""Checks of the number of threads."""

from __future__ import annotations

import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from isorun import Session
from isorun.system.process_usage import processor_ticks, thread_cores
from isorun.system.threads import usable_cores
from isorun_conformance.checks.base import Checks, proves
from isorun_conformance.sample_models import Dense, SampleModel, dense

_TICKS = 40  # of 10 ms each: the processor time that a measurement of threads needs
_SECONDS = 30
_RUNS = 50
_PART = 0.15  # of the processor time, which the second of two threads takes at least


class Threads(Checks):
    """The number of threads, where it can be set or is fixed."""

    @proves("threads")
    @pytest.mark.skipif(sys.platform != "linux", reason="needs Linux, which counts the processor time of a thread")
    def test_no_more_threads_compute_than_declared(self) -> None:
        fewest = self._fewest_threads()
        model = dense("heavy")
        with self.under_test.open(model, threads=fewest) as session:
            assert session.provenance.threads == fewest
            ticks = _processor_time(session, model)
        busiest, total = sum(ticks[:-1][:fewest]), sum(ticks)
        assert total <= busiest * 1.3, (
            f"with threads={fewest}, it took {total / busiest:.1f} times the processor time of the busiest"
        )

    @proves("threads")
    @pytest.mark.skipif(sys.platform != "linux", reason="needs Linux, which counts the processor time of a thread")
    def test_two_threads_compute_on_two_cores(self) -> None:
        """At most, and at least: each of two threads takes its part of the processor time."""
        self._require_threads()
        if usable_cores() < 2:
            pytest.skip("needs two cores")
        model = Dense("heavy", False, 1024)
        with self.under_test.open(model, threads=2) as session:
            started = time.monotonic()
            ticks = _processor_time(session, model)
            cores = sum(ticks) / 100 / (time.monotonic() - started)
        assert ticks[1] >= sum(ticks) * _PART, (
            f"with threads=2, one thread took {ticks[0] / sum(ticks):.0%} of the processor time: it computes alone"
        )
        assert cores <= 2.5, f"with threads=2, it kept {cores:.1f} cores busy"

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
    def test_accuracy_with_any_number_of_threads(self) -> None:
        self._require_threads()
        model = self.under_test.encoder("bert-2x128")
        for threads in (1, 2, usable_cores()):
            with self.under_test.open(model, threads=threads) as session:
                assert session.provenance.threads == threads
                self.under_test.assert_accurate(model, session, model.feeds())

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


def _run_often(session: Session, model: SampleModel) -> None:
    feeds = model.feeds()
    for _ in range(_RUNS):
        session.run(None, feeds)


def _processor_time(session: Session, model: SampleModel) -> list[int]:
    """Processor time of each thread while the session runs, in ticks, from the busiest; last, that of ended threads.

    Their ratios hardly depend on what else the machine does.
    """
    feeds = model.feeds()
    session.run(None, feeds)
    (total_before, before), deadline = processor_ticks(), time.monotonic() + _SECONDS
    while time.monotonic() < deadline:
        pause = time.monotonic() + 0.2  # reading the times takes processor time too
        while time.monotonic() < pause:
            session.run(None, feeds)
        total, by_thread = processor_ticks()
        if total - total_before >= _TICKS:
            ticks = sorted((now - before.get(thread, 0) for thread, now in by_thread.items()), reverse=True)
            return [*ticks, 0, max(0, total - total_before - sum(ticks))]
    pytest.skip(f"{_SECONDS} s of runs took too little processor time to tell threads apart")
