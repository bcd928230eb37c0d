"""Checks of many threads: runs of one session at shapes old and new, bindings, and sessions of their own."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import pytest

from isorun.errors import IsorunError
from isorun_conformance.backend_under_test import named
from isorun_conformance.checks.base import Checks, proves
from isorun_conformance.formulas import four_outputs
from isorun_conformance.sample_models import SUM, SampleModel, dense, encoder, parsed

_THREADS, _MANY = 8, 32


class Concurrency(Checks):
    """Runs and sessions at the same time. Runs overlap if the backend declares ``thread_safe``; otherwise the session
    serializes them."""

    @proves("concurrent runs")
    @pytest.mark.parametrize("padding", ["keep", "auto"])
    def test_concurrent_runs_return_their_own_outputs(self, padding: str) -> None:
        """On one thread each, and on all."""
        model = self.under_test.encoder()
        feeds = [model.feeds(seed) for seed in range(8)]
        for threads in dict.fromkeys((self.under_test.config.threads, None)):
            with self.under_test.open(model, padding=padding, threads=threads) as session, _eager_switching():
                self.under_test.assert_accurate(model, session, feeds[0])
                expected = [session.run(None, fed) for fed in feeds]
                results = in_threads(lambda number: session.run(None, feeds[number % 8]), 4 * _MANY, _MANY)
            for number, outputs in enumerate(results):
                assert_close(outputs, expected[number % 8], "a run returned the outputs of another one")

    @proves("concurrent runs")
    def test_concurrent_runs_at_new_shapes(self) -> None:
        """What a runtime prepares for a shape is prepared by several threads at once, which start together."""
        self.under_test.require(self.under_test.capabilities.dynamic_shapes, "dynamic shapes")
        model = encoder("bert-1x32", dynamic=True)
        for first in range(1, 5):
            with self.under_test.open(model, padding="keep") as session, _eager_switching():
                for step in range(6):
                    # Two shapes, so that some threads share one.
                    shapes = [(first + number % 2, 3 + 4 * step + first) for number in range(_THREADS)]
                    feeds = [
                        model.feeds(number, batch=batch, sequence=sequence)
                        for number, (batch, sequence) in enumerate(shapes)
                    ]
                    results = _at_once([partial(session.run, None, fed) for fed in feeds])
                    for fed, outputs in zip(feeds, results, strict=True):
                        what = "a run at a new shape, beside others,"
                        self.under_test.assert_accurate(model, session, fed, named(session, outputs), what=what)

    @proves("concurrent runs")
    def test_concurrent_runs_with_other_outputs_and_sizes(self) -> None:
        self.under_test.require(self.under_test.capabilities.dynamic_shapes, "dynamic shapes")
        model = four_outputs(dynamic=True)
        # The last is memory that runtimes treat as large; an engine of one shape would run it in a thousand parts.
        sizes = (1, 301, 12_000 if self.under_test.capabilities.static_shapes is None else 601)
        feeds = [model.feeds(number, rows=sizes[number % 3]) for number in range(_THREADS)]
        expected = [self.under_test.expected(model, fed) for fed in feeds]
        names = [list(expected[0])[number % 4 :] for number in range(_THREADS)]
        with self.under_test.open(model) as session, _eager_switching():

            def work(number: int) -> dict[str, Any]:
                number %= _THREADS
                outputs = session.run(names[number], feeds[number])
                wanted, got = len(names[number]), len(outputs)
                assert got == wanted, (
                    f"beside runs that request others, {wanted} outputs were requested and {got} returned"
                )
                return dict(zip(names[number], outputs, strict=True))

            for number, outputs in enumerate(in_threads(work, calls=160)):
                what = "a run beside others of other outputs and sizes"
                self.under_test.assert_accurate(model, session, feeds[number % _THREADS], outputs, what=what)

    @proves("concurrent runs")
    def test_concurrent_bindings(self) -> None:
        model = four_outputs(dynamic=False)
        with self.under_test.open(model) as session, _eager_switching():
            feeds = [model.feeds(number) for number in range(_THREADS)]
            names = list(self.under_test.expected(model, feeds[0]))

            def work(number: int) -> None:
                binding = session.io_binding()
                for name, array in feeds[number].items():
                    binding.bind_cpu_input(name, array)
                for name in names:
                    binding.bind_output(name)
                for _ in range(10):
                    session.run_with_iobinding(binding)
                    outputs = dict(zip(names, binding.copy_outputs_to_cpu(), strict=True))
                    what = "a binding beside others"
                    self.under_test.assert_accurate(model, session, feeds[number], outputs, what=what)

            in_threads(work, calls=_THREADS)

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
                    assert_close(session.run(None, good), expected, "a run beside a failing one is wrong")

            in_threads(work, threads=4, calls=48)

    @proves("concurrent sessions")
    def test_concurrent_sessions(self) -> None:
        models: list[SampleModel] = [self.under_test.encoder(), dense(), dense("one-node")]
        expected = [self.under_test.expected(model, model.feeds()) for model in models]

        def work(number: int) -> None:
            model = models[number % 3]
            with self.under_test.open(model, padding="keep") as session:
                for _ in range(3):
                    outputs = named(session, session.run(None, model.feeds()))
                    assert outputs.keys() == expected[number % 3].keys()
                    what = f"{model} beside other sessions"
                    self.under_test.assert_accurate(model, session, model.feeds(), outputs, what=what)

        in_threads(work, threads=4, calls=12)


def in_threads(work: Callable[[int], Any], calls: int, threads: int = _THREADS) -> list[Any]:
    """Call a function with 0, 1, 2 ... in some threads; its results in order."""
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(work, range(calls)))


def _at_once(calls: Sequence[Callable[[], Any]]) -> list[Any]:
    barrier = threading.Barrier(len(calls))

    def work(number: int) -> Any:
        barrier.wait(60)
        return calls[number]()

    return in_threads(work, len(calls), len(calls))


def assert_close(outputs: Sequence[Any], expected: Sequence[Any], message: str) -> None:
    """Compare the outputs of two runs on the same feeds."""
    for array, wanted in zip(outputs, expected, strict=True):
        np.testing.assert_allclose(array, wanted, rtol=1e-4, atol=1e-5, err_msg=message)


@contextmanager
def _eager_switching() -> Iterator[None]:
    """Switch threads a thousand times as often, which shows what runs share by mistake."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(5e-6)
    try:
        yield
    finally:
        sys.setswitchinterval(interval)
