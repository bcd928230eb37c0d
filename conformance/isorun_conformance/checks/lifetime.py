"""Checks of sessions over time: closing, leaks, the model's file."""

from __future__ import annotations

import gc
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pytest

from isorun import Session
from isorun.errors import IsorunError
from isorun.system import process_usage
from isorun.types import Feeds, LoweredModel
from isorun_conformance.checks.base import Checks, proves
from isorun_conformance.checks.concurrency import assert_close
from isorun_conformance.sample_models import SUM, Dense, dense, parsed

_RUNS, _FIRST_RUNS, _RUN_SECONDS = 2000, 100, 10
_IDLE_SECONDS = 1.5
_RUN_MEMORY_MIB = 8
"""What 2,000 runs may leave in memory: 4 KiB per run, the size of an output."""
_SESSIONS, _SESSIONS_SECONDS = 200, 150
_AT_ONCE, _NEW_SHAPES, _WEIGHTS_MIB = 40, 60, 4
_MEMORY_MIB = 24
"""What 150 sessions may leave in memory: an eighth of a megabyte per session. A session that is never released keeps
the 0.25 MiB of weights of its model; allocators keep some memory for themselves."""


class Lifetime(Checks):
    """Closing, leaks, and the model's file."""

    @proves("closing")
    def test_close_ends_runs_and_keeps_outputs(self) -> None:
        model = self.under_test.encoder()
        session = self.under_test.open(model)
        outputs = session.run(None, model.feeds())
        kept = [array.copy() for array in outputs]
        session.close()
        session.close()
        with pytest.raises(IsorunError, match="closed"):
            session.run(None, model.feeds())
        del session
        gc.collect()
        assert _filled(64)  # where the outputs were, if they were freed
        for array, copy in zip(outputs, kept, strict=True):
            np.testing.assert_array_equal(array, copy)

    @proves("closing")
    def test_close_during_runs(self) -> None:
        """A run returns the right outputs or raises because the session is closed."""
        model = self.under_test.encoder()
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

    @proves("independent sessions")
    def test_many_sessions_at_once(self) -> None:
        models = [dense(seed=seed) for seed in range(_AT_ONCE)]
        with ExitStack() as stack:
            sessions = [stack.enter_context(self.under_test.open(model)) for model in models]
            for model, session in zip(models, sessions, strict=True):
                what = f"one of {_AT_ONCE} sessions that are open at once"
                self.under_test.assert_accurate(model, session, model.feeds(), what=what)

    @proves("leaks")
    @pytest.mark.skipif(sys.platform != "linux", reason="needs Linux, which lists what a process holds")
    def test_threads_that_have_ended_leak_nothing(self) -> None:
        """Servers run each request on a thread of its own."""
        model = dense()
        feeds = model.feeds()
        with self.under_test.open(model) as session:

            def use(_: int) -> None:
                with ThreadPoolExecutor(1) as pool:
                    pool.submit(session.run, None, feeds).result()

            before = _held_after(use, _FIRST_RUNS)
            after = _held_after(use, 2 * _FIRST_RUNS)
            after.check_against(before, f"runs on {2 * _FIRST_RUNS} threads, one after another,", _MEMORY_MIB)

    @proves("leaks")
    @pytest.mark.skipif(sys.platform != "linux", reason="needs Linux, which lists what a process holds")
    def test_new_shapes_keep_no_weights(self) -> None:
        """A model that is prepared for each shape has its weights once, or few such shapes are kept."""
        self.under_test.require(self.under_test.capabilities.dynamic_shapes, "dynamic shapes")
        model = Dense("wide-node", True, 1)
        with self.under_test.open(model) as session:

            def use(number: int) -> None:
                session.run(None, model.feeds(rows=1 + number))

            before = _held_after(use, 4)
            after = _held_after(use, _NEW_SHAPES, 4)
            what = f"{_NEW_SHAPES} new shapes of a model of {_WEIGHTS_MIB} MiB"
            after.check_against(before, what, _NEW_SHAPES * _WEIGHTS_MIB / 2)

    @proves("leaks")
    @pytest.mark.skipif(sys.platform != "linux", reason="needs Linux, which lists what a process holds")
    def test_sessions_leak_nothing(self) -> None:
        """And the last of them computes what the first one did."""
        model = dense()
        feeds = model.feeds()

        def use(_: int) -> None:
            (y,) = self.under_test.open_run_close(model, feeds)
            error = np.abs(y - self.under_test.expected(model, feeds)["y"]).max()
            assert error < 0.1, "one of many sessions, opened one after another, is wrong"

        warm_up = _affordable(use, _SESSIONS, _SESSIONS_SECONDS) // 4
        before = _held_after(use, warm_up)
        after = _held_after(use, 3 * warm_up)
        allowed = max(_MEMORY_MIB * 4 * warm_up / _SESSIONS, 8)
        after.check_against(before, f"{3 * warm_up} sessions, opened, run and closed,", allowed)

    @proves("leaks")
    @pytest.mark.skipif(sys.platform != "linux", reason="needs Linux, which lists what a process holds")
    @pytest.mark.parametrize("kind", ["runs", "bindings"])
    def test_runs_leak_nothing(self, kind: str) -> None:
        """And the last of them computes what the first one did."""
        model = dense()
        feeds = [model.feeds(seed) for seed in range(7)]
        expected = [self.under_test.expected(model, fed)["y"] for fed in feeds]
        first: dict[int, np.ndarray] = {}
        with self.under_test.open(model) as session:

            def use(number: int) -> None:
                fed = {"x": feeds[number % 7]["x"].copy()}
                if kind == "runs":
                    (y,) = session.run(None, fed)
                else:
                    binding = session.io_binding()
                    binding.bind_cpu_input("x", fed["x"])
                    binding.bind_output("y")
                    session.run_with_iobinding(binding)
                    (y,) = binding.copy_outputs_to_cpu()
                error = np.abs(y - expected[number % 7]).max()
                assert error < 0.1, f"run {number} of many is wrong"
                # An error that grows from run to run, as where a state is not reset.
                assert_close([y], [first.setdefault(number % 7, y)], f"run {number} of many differs from the first")

            _assert_no_leak(use, kind)

    @proves("leaks")
    @pytest.mark.skipif(sys.platform != "linux", reason="needs Linux, which lists what a process holds")
    @pytest.mark.parametrize("kind", ["failing runs", "runs of new shapes", "refused models"])
    def test_unusual_runs_leak_nothing(self, kind: str) -> None:
        self.under_test.require(self.under_test.capabilities.dynamic_shapes, "dynamic shapes")
        refused = self._damaged()
        with self.under_test.open(parsed(SUM)) as session:

            def fail(_: int) -> None:
                with suppress(IsorunError):
                    session.run(None, {"x": np.ones(1 << 12, np.float32), "y": np.ones(3, np.float32)})

            def change_shape(number: int) -> None:
                ones = np.ones(1 + number, np.float32)
                (z,) = session.run(None, {"x": ones, "y": ones})
                np.testing.assert_array_equal(z, ones + 1)

            def refuse(_: int) -> None:
                with suppress(IsorunError):
                    self.under_test.backend.compile(refused, self.under_test.config).close()

            _assert_no_leak({"failing runs": fail, "refused models": refuse}.get(kind, change_shape), kind)

    def _damaged(self) -> LoweredModel:
        """A lowered model whose file ends too early."""
        lowered = self.under_test.lowered(dense())
        path = self.under_test.folder / "damaged.onnx"
        content = lowered.path.read_bytes()
        path.write_bytes(content[: len(content) // 2])
        return replace(lowered, path=path)

    @proves("idle sessions")
    @pytest.mark.skipif(sys.platform != "linux", reason="needs Linux, which counts the processor time of a thread")
    def test_idle_session_is_idle_and_still_right(self) -> None:
        model = self.under_test.encoder()
        with self.under_test.open(model) as session:
            session.run(None, model.feeds())
            time.sleep(_IDLE_SECONDS)  # threads may spin for a moment
            before, _ = process_usage.processor_time()
            time.sleep(_IDLE_SECONDS)
            after, _ = process_usage.processor_time()
            self.under_test.assert_accurate(model, session, model.feeds(), what="a run after a pause")
        assert after - before <= _IDLE_SECONDS / 4, (
            f"between runs, it took {after - before:.1f} s of processor time in {_IDLE_SECONDS:g} s"
        )

    @proves("model file")
    def test_model_file_is_not_changed(self) -> None:
        """The file belongs to the cache."""
        model = self.under_test.encoder()
        for dialect in self.under_test.capabilities.dialects:
            lowered = self.under_test.lowered(model, dialect)
            files = {path: path.read_bytes() for path in lowered.path.parent.iterdir()}
            with self.under_test.compiled(lowered) as executable:
                executable.run(lowered.info.output_names, model.feeds())
                executable.report()
            changed = [path.name for path, content in files.items() if path.read_bytes() != content]
            assert not changed, f"it wrote to {', '.join(changed)}: give the runtime a copy"
            new = set(lowered.path.parent.iterdir()) - files.keys()
            assert not new, f"it left {', '.join(path.name for path in new)} beside the model"


def _filled(count: int) -> list[np.ndarray]:
    """Arrays of the sizes of small outputs, all NaN."""
    return [np.full(1 << power, np.nan, np.float32) for power in range(5, 14) for _ in range(count)]


def _run_until_closed(session: Session, feeds: Feeds, running: threading.Barrier) -> str:
    """Run until that raises; the error's message."""
    expected = session.run(None, feeds)
    running.wait(60)
    try:
        while True:
            assert_close(session.run(None, feeds), expected, "a run during close() is wrong")
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
        process_usage.return_free_memory()  # a leak would fill it first, and not show
        files, processes = process_usage.open_files(), process_usage.family()
        return cls(process_usage.anonymous_mib() or 0.0, len(files), process_usage.threads(), len(processes))

    def check_against(self, before: _Held, who: str, mebibytes: float) -> None:
        """Fail if much more is held than before. Memory last: processes, files and threads take memory too."""
        assert self.processes <= before.processes, f"{who} left {self.processes - before.processes} processes"
        assert self.files <= before.files + 4, f"{who} left {self.files - before.files} files open"
        assert self.threads <= before.threads + 4, f"{who} left {self.threads - before.threads} threads"
        grown = self.mebibytes - before.mebibytes
        assert grown <= mebibytes, f"{who} left {grown:.0f} MiB; at most {mebibytes:g} MiB are allowed"


def _assert_no_leak(run: Callable[[int], None], kind: str) -> None:
    """Fail if many runs leave more than a few of them, three times in a row: an allocator may grow once or twice."""
    count = _affordable(run, _RUNS, _RUN_SECONDS)
    before = _held_after(run, min(count, _FIRST_RUNS))
    allowed = max(_RUN_MEMORY_MIB * count / _RUNS, 4)
    for repetition in range(1, 4):
        after = _held_after(run, count, repetition * count)
        try:
            after.check_against(before, f"{count} {kind}", allowed)
            break
        except AssertionError:
            if repetition == 3:
                raise
            before = after


def _affordable(use: Callable[[int], None], most: int, seconds: float) -> int:
    """How often something can be done in a time, 20 times at least: less than ``most`` where it is slow."""
    use(0)  # the first time takes longer
    started = time.monotonic()
    for number in range(4):
        use(number)
    return max(20, min(most, int(4 * seconds / (time.monotonic() - started))))


def _held_after(use: Callable[[int], None], count: int, first: int = 0) -> _Held:
    for number in range(first, first + count):
        use(number)
    return _Held.now()
