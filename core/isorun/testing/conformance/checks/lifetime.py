"""Checks of sessions over time: many threads, many sessions, closing, leaks, the model's file."""

from __future__ import annotations

import gc
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import pytest

from isorun import Session
from isorun.errors import IsorunError
from isorun.testing.conformance import process_usage
from isorun.testing.conformance.backend_under_test import named
from isorun.testing.conformance.checks.base import Checks, proves
from isorun.testing.conformance.sample_models import SUM, SampleModel, dense, parsed
from isorun.types import Feeds

_SESSIONS, _WARM_UP = 200, 50
_MEMORY_MIB = 24
"""What 150 sessions may leave in memory: an eighth of a megabyte per session. A session that is never released keeps
the 0.25 MiB of weights of its model; allocators keep some memory for themselves."""


class Lifetime(Checks):
    """Concurrency, closing, leaks, and the model's file."""

    @proves("concurrent runs")
    def test_concurrent_runs_return_their_own_outputs(self) -> None:
        """Runs overlap if the backend declares ``thread_safe``; otherwise the session serializes them."""
        model = self.under_test.bert()
        with self.under_test.open(model) as session, _eager_switching():
            feeds = [model.feeds(seed) for seed in range(8)]
            self.under_test.assert_accurate(model, session, feeds[0])
            expected = [session.run(None, each) for each in feeds]
            found = _in_threads(lambda number: session.run(None, feeds[number % 8]), threads=8, calls=96)
        for number, outputs in enumerate(found):
            _assert_close(outputs, expected[number % 8], "a run returned the outputs of another one")

    @proves("concurrent runs")
    def test_failing_run_harms_no_other(self) -> None:
        dynamic = self.under_test.capabilities.dynamic_shapes
        self.under_test.require(dynamic, "dynamic shapes, without which no run can fail")
        x, y = np.arange(2, dtype=np.float32), np.arange(3, dtype=np.float32)
        good, bad = {"x": y, "y": y}, {"x": x, "y": y}
        with self.under_test.open(parsed(SUM)) as session:
            expected = session.run(None, good)

            def work(number: int) -> None:
                if number % 3 == 0:
                    with pytest.raises(IsorunError):
                        session.run(None, bad)
                else:
                    _assert_close(session.run(None, good), expected, "a run beside a failing one is wrong")

            _in_threads(work, threads=4, calls=48)

    @proves("concurrent sessions")
    def test_concurrent_sessions(self) -> None:
        models: list[SampleModel] = [self.under_test.bert(), dense(), dense("one-node")]
        expected = [self.under_test.expected(model, model.feeds()) for model in models]

        def work(number: int) -> None:
            model = models[number % 3]
            with self.under_test.open(model, padding="keep") as session:
                for _ in range(3):
                    outputs = named(session, session.run(None, model.feeds()))
                    assert outputs.keys() == expected[number % 3].keys()
                    what = f"{model} beside other sessions"
                    self.under_test.assert_accurate(model, session, model.feeds(), outputs, what=what)

        _in_threads(work, threads=4, calls=12)

    @proves("closing")
    def test_close_ends_runs_and_keeps_outputs(self) -> None:
        model = self.under_test.bert()
        session = self.under_test.open(model)
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
    def test_close_during_runs(self) -> None:
        """A run returns the right outputs or raises because the session is closed."""
        model = self.under_test.bert()
        feeds = model.feeds()
        for moment in range(6):
            session = self.under_test.open(model)
            with ThreadPoolExecutor(3) as pool:
                running = threading.Barrier(4)
                futures = [pool.submit(_run_until_closed, session, feeds, running) for _ in range(3)]
                running.wait(60)
                time.sleep(0.002 * moment)
                session.close()
                for future in futures:
                    message = future.result(120)
                    assert "closed" in message, f"a run during close() raised: {message}"

    @proves("leaks")
    @pytest.mark.skipif(sys.platform != "linux", reason="needs Linux, which lists what a process holds")
    def test_sessions_leak_nothing(self) -> None:
        model = dense()
        feeds = model.feeds()
        before = _Held.now()
        for number in range(_SESSIONS):
            if number == _WARM_UP:
                before = _Held.now()
            self.under_test.open_run_close(model, feeds)
        after = _Held.now()
        who = f"{_SESSIONS - _WARM_UP} sessions, opened, run and closed,"
        # Memory last: leaked processes, files and threads take memory too.
        assert after.processes <= before.processes, f"{who} left {after.processes - before.processes} processes"
        assert after.files <= before.files + 4, f"{who} left {after.files - before.files} files open"
        assert after.threads <= before.threads + 4, f"{who} left {after.threads - before.threads} threads"
        grown = after.mebibytes - before.mebibytes
        assert grown <= _MEMORY_MIB, f"{who} left {grown:.0f} MiB; at most {_MEMORY_MIB} MiB are allowed"

    @proves("model file")
    def test_model_file_is_not_changed(self) -> None:
        """The file belongs to the cache."""
        model = self.under_test.bert()
        for dialect in self.under_test.capabilities.dialects:
            lowered = self.under_test.lowered(model, dialect)
            files = {path: path.read_bytes() for path in lowered.path.parent.iterdir()}
            with self.under_test.compiled(lowered) as executable:
                executable.run([spec.name for spec in lowered.info.outputs], model.feeds())
                executable.report()
            changed = [path.name for path, content in files.items() if path.read_bytes() != content]
            assert not changed, f"it wrote to {', '.join(changed)}: give the runtime a copy"
            new = set(lowered.path.parent.iterdir()) - files.keys()
            assert not new, f"it left {', '.join(path.name for path in new)} beside the model"


def _in_threads(work: Callable[[int], Any], threads: int, calls: int) -> list[Any]:
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(work, range(calls)))


def _assert_close(outputs: Sequence[Any], expected: Sequence[Any], message: str) -> None:
    for array, other in zip(outputs, expected, strict=True):
        np.testing.assert_allclose(array, other, rtol=1e-4, atol=1e-5, err_msg=message)


def _run_until_closed(session: Session, feeds: Feeds, running: threading.Barrier) -> str:
    """Run until that raises; the error's message."""
    expected = session.run(None, feeds)
    running.wait(60)
    try:
        while True:
            _assert_close(session.run(None, feeds), expected, "a run during close() is wrong")
    except IsorunError as error:
        return str(error)


class _Held(NamedTuple):
    """What this process and its children hold."""

    mebibytes: float
    files: int
    threads: int
    processes: int

    @classmethod
    def now(cls) -> _Held:
        gc.collect()
        files, processes = process_usage.open_files(), process_usage.process_ids()
        return cls(process_usage.resident_mib(), len(files), process_usage.threads(), len(processes))


@contextmanager
def _eager_switching() -> Iterator[None]:
    """Switch threads a thousand times as often, which shows what runs share by mistake."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(5e-6)
    try:
        yield
    finally:
        sys.setswitchinterval(interval)
