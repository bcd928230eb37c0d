"""Checks of sessions over time: many threads, many sessions, closing, and what is left behind."""

from __future__ import annotations

import gc
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np
import pytest

from isorun import Session
from isorun.errors import IsorunError
from isorun.testing.suite import processes
from isorun.testing.suite.proofs import proves
from isorun.testing.suite.samples import Sample, dense
from isorun.testing.suite.subject import Checks, named
from isorun.types import Feeds

SESSIONS, WARM_UP = 200, 50
MEMORY_MIB = 24
"""What 150 sessions may leave in memory: an eighth of a megabyte each would be more. Allocators keep some of their own;
the model that is opened holds 0.25 MiB of weights, which a session that is not let go of keeps."""


class Lifetime(Checks):
    """Concurrency, closing, leaks, and the model's file."""

    @proves("concurrent runs")
    def test_many_threads_get_what_one_gets(self) -> None:
        """All at once where the backend declares that it may, in turns where not: the answers are each one's own."""
        model = self.subject.bert()
        with self.subject.open(model) as session, _eager_switching():
            feeds = [model.feeds(seed) for seed in range(8)]
            self.subject.assert_right(model, session, feeds[0])
            expected = [session.run(None, each) for each in feeds]
            with ThreadPoolExecutor(8) as pool:
                found = list(pool.map(lambda number: session.run(None, feeds[number % 8]), range(96)))
        for number, outputs in enumerate(found):
            for one, other in zip(outputs, expected[number % 8], strict=True):
                np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5, err_msg="a run got another one's answer")

    @proves("concurrent runs")
    def test_a_failing_run_harms_no_other(self) -> None:
        model = self.subject.bert()
        good, bad = model.feeds(1), model.feeds(2)
        bad["input_ids"][0, 0] = 10**6
        with self.subject.open(model, padding="keep") as session:
            expected = session.run(None, good)

            def work(number: int) -> None:
                if number % 3 == 0:
                    with pytest.raises(IsorunError):
                        session.run(None, bad)
                    return
                for one, other in zip(session.run(None, good), expected, strict=True):
                    np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)

            with ThreadPoolExecutor(4) as pool:
                list(pool.map(work, range(48)))

    @proves("concurrent sessions")
    def test_several_sessions_at_once(self) -> None:
        models: list[Sample] = [self.subject.bert(), dense(), dense("one-node")]
        expected = [self.subject.expected(model, model.feeds()) for model in models]

        def work(number: int) -> None:
            model = models[number % 3]
            with self.subject.open(model, padding="keep") as session:
                for _ in range(3):
                    outputs = named(session, session.run(None, model.feeds()))
                    assert outputs.keys() == expected[number % 3].keys()
                    parity = self.subject.compare(model, session, model.feeds(), outputs)
                    assert parity.verdict == "pass", f"beside other sessions: {'; '.join(parity.reasons)}"

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(work, range(12)))

    @proves("closing")
    def test_after_close_nothing_runs_and_results_stay(self) -> None:
        model = self.subject.bert()
        session = self.subject.open(model)
        outputs = session.run(None, model.feeds())
        kept = [array.copy() for array in outputs]
        session.close()
        session.close()
        with pytest.raises(IsorunError, match="closed"):
            session.run(None, model.feeds())
        del session
        gc.collect()
        for array, copy in zip(outputs, kept, strict=True):
            np.testing.assert_array_equal(array, copy)

    @proves("closing")
    def test_closing_amid_runs(self) -> None:
        """A run gives the right answer or says that the session is closed; there is no third way."""
        model = self.subject.bert()
        feeds = model.feeds()
        for moment in range(6):
            session = self.subject.open(model)
            with ThreadPoolExecutor(3) as pool:
                running = threading.Barrier(4)
                futures = [pool.submit(_run_until_closed, session, feeds, running) for _ in range(3)]
                running.wait(60)
                time.sleep(0.002 * moment)
                session.close()
                for future in futures:
                    said = future.result(120)
                    assert "closed" in said, f"a run amid closing ended with: {said}"

    @proves("leaks")
    @pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells what a process holds")
    def test_200_sessions_leave_nothing_behind(self) -> None:
        model = dense()
        feeds = model.feeds()
        held = _Held.now()
        for number in range(SESSIONS):
            if number == WARM_UP:
                held = _Held.now()
            self.subject.open_run_close(model, feeds)
        after = _Held.now()
        they = f"{SESSIONS - WARM_UP} sessions, opened, run and closed,"
        # What is counted comes before what is weighed: each of them takes memory too.
        assert after.processes <= held.processes, f"{they} left {after.processes - held.processes} processes"
        assert after.files <= held.files + 4, f"{they} left {after.files - held.files} files open"
        assert after.threads <= held.threads + 4, f"{they} left {after.threads - held.threads} threads"
        grown = after.mebibytes - held.mebibytes
        assert grown <= MEMORY_MIB, f"{they} left {grown:.0f} MiB; {MEMORY_MIB} may be"

    @proves("model file")
    def test_the_model_stays_as_it_was(self) -> None:
        """The file belongs to the cache."""
        model = self.subject.bert()
        for dialect in self.subject.capabilities.dialects:
            lowered = self.subject.lowered(model, dialect)
            files = {path: path.read_bytes() for path in lowered.path.parent.iterdir()}
            with self.subject.compiled(lowered) as executable:
                executable.run(None, model.feeds())
                executable.report()
            changed = [path.name for path, content in files.items() if path.read_bytes() != content]
            assert not changed, f"it wrote to {', '.join(changed)}: give the runtime a copy"
            new = set(lowered.path.parent.iterdir()) - files.keys()
            assert not new, f"it left {', '.join(path.name for path in new)} beside the model"


def _run_until_closed(session: Session, feeds: Feeds, running: threading.Barrier) -> str:
    """Run until that is refused; what the refusal said."""
    expected = session.run(None, feeds)
    running.wait(60)
    try:
        while True:
            for one, other in zip(session.run(None, feeds), expected, strict=True):
                np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)
    except IsorunError as error:
        return str(error)


class _Held(NamedTuple):
    """What this process and those that it started hold."""

    mebibytes: float
    files: int
    threads: int
    processes: int

    @classmethod
    def now(cls) -> _Held:
        gc.collect()
        return cls(processes.resident_mib(), len(processes.open_files()), processes.threads(), len(processes.family()))


@contextmanager
def _eager_switching() -> Iterator[None]:
    """Threads take turns a thousand times as often: what is shared by mistake shows."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(5e-6)
    try:
        yield
    finally:
        sys.setswitchinterval(interval)
