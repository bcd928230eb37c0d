"""One session, many threads."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import isorun
import tiny
from bindings import bound


def assert_equal_to_one_thread(session, threads: int, runs: int) -> None:
    feeds = [tiny.feeds(*shape, seed=seed) for shape in tiny.SHAPES for seed in range(2)]
    expected = [session.run(None, each) for each in feeds]
    start = threading.Barrier(threads)

    def work(thread: int) -> int:
        order = np.random.default_rng(thread).integers(0, len(feeds), runs)
        start.wait()
        outputs = [(index, session.run(None, feeds[index])) for index in order]
        return sum(
            not all(np.array_equal(a, b) for a, b in zip(found, expected[index], strict=True))
            for index, found in outputs
        )

    with ThreadPoolExecutor(threads) as pool:
        assert sum(pool.map(work, range(threads))) == 0


@pytest.mark.long
@pytest.mark.parametrize(
    ("backend", "threads"),
    [("ort-cpu", 1), ("ort-cpu", None), ("openvino", 1), ("openvino", None), ("reference", None)],
)
def test_concurrent_runs_return_what_single_runs_return(bert, backend, threads):
    with isorun.Session(bert, backend=backend, threads=threads) as opened:
        assert_equal_to_one_thread(opened, threads=8, runs=500)


def test_a_backend_that_is_not_thread_safe_is_run_in_turns(bert):
    with isorun.Session(bert, backend="reference", padding="keep") as session:
        inside, most = 0, 0
        run, report = session._executable.run, session._executable.report

        def watched(call, *given):
            nonlocal inside, most
            inside += 1
            most = max(most, inside)
            try:
                time.sleep(0.001)
                return call(*given)
            finally:
                inside -= 1

        session._executable.run = lambda names, feeds: watched(run, names, feeds)
        session._executable.report = lambda: watched(report)

        def work(number: int) -> None:
            if number == 5:
                assert session.provenance.backend == "reference"
                return
            if number % 2:
                session.run(None, tiny.feeds())
                return
            binding = bound(session, tiny.feeds(), "pooler_output")
            binding.run()

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(work, range(24)))
        assert most == 1
