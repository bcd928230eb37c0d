"""Calls of 1, 8 and 300 requests on a short queue, and the way of a request to the plugin."""

import asyncio
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import isorun
import small_bert
from isorun.compilation.compiled_model import CompiledModel
from isorun.tuning import concurrency
from isorun.tuning.concurrency import ConcurrencyPlan
from singles import request

CALLERS = {1: 12, 8: 4, 300: 2}
ROUNDS = {1: 60, 8: 15, 300: 2}  # calls of each caller


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_bert.write(tmp_path_factory.mktemp("model") / "model.onnx")


async def load(session: isorun.Session) -> tuple[Counter[int], int, float]:
    """Served calls by size, the rejected rows, and the rate of served rows. Each caller repeats rejected calls."""
    served: Counter[int] = Counter()
    rejected = 0
    feeds = {name: array[None] for name, array in request(6).items()}

    async def caller(rows: int) -> None:
        nonlocal rejected
        for _ in range(ROUNDS[rows]):
            while True:
                try:
                    results = await session.arun_many(None, [feeds] * rows)
                except isorun.QueueFull:
                    rejected += rows
                    await asyncio.sleep(0.002)
                    continue
                assert len(results) == rows
                served[rows] += 1
                break

    start = time.perf_counter()
    async with asyncio.timeout(60):
        await asyncio.gather(*(caller(rows) for rows, count in CALLERS.items() for _ in range(count)))
    return served, rejected, sum(rows * calls for rows, calls in served.items()) / (time.perf_counter() - start)


def test_no_call_starves_and_nothing_runs_for_a_rejected_one(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(concurrency, "remembered", lambda subject: ConcurrencyPlan(1, None, 96))
    with isorun.Session(model, "ort-cpu", threads=1, max_queue=256) as session:
        served, rejected, _ = asyncio.run(load(session))
        metrics = session.metrics()
    expected = {rows: CALLERS[rows] * ROUNDS[rows] for rows in CALLERS}
    assert served == expected
    accepted = sum(rows * calls for rows, calls in expected.items())
    assert (metrics.requests, metrics.rejected, metrics.waiting) == (accepted, rejected, 0)
    assert metrics.batch_rows.total == accepted  # what ran


def test_a_long_call_delays_short_ones_by_its_share_of_a_batch(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(concurrency, "remembered", lambda subject: ConcurrencyPlan(1, None, 48))
    gate, run = threading.Event(), CompiledModel.run
    monkeypatch.setattr(CompiledModel, "run", lambda *arguments: gate.wait(20) and run(*arguments))
    feeds = {name: array[None] for name, array in request(6).items()}
    answered: list[str] = []

    async def call(name: str, rows: int) -> None:
        await session.arun_many(None, [feeds] * rows)
        answered.append(name)

    async def work() -> None:
        tasks = [asyncio.create_task(call("long", 300))]
        await asyncio.sleep(0)
        tasks += [asyncio.create_task(call("short", rows)) for rows in (1, 8) * 3]
        await asyncio.sleep(0)
        gate.set()
        await asyncio.gather(*tasks)

    with isorun.Session(model, "ort-cpu", threads=1) as session:
        asyncio.run(work())
    assert answered == ["short"] * 6 + ["long"]


def test_a_cancelled_call_leaves_the_queue_at_once(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(concurrency, "remembered", lambda subject: ConcurrencyPlan(1, None, 12))
    gate, run = threading.Event(), CompiledModel.run
    monkeypatch.setattr(CompiledModel, "run", lambda *arguments: gate.wait(20) and run(*arguments))
    feeds = {name: array[None] for name, array in request(6).items()}

    async def work() -> None:
        with pytest.raises(isorun.DeadlineExceeded):
            await session.arun_many(None, [feeds] * 100, timeout=0.05)
        assert session.metrics().waiting <= 2  # in the batch that is assembled
        gate.set()

    with isorun.Session(model, "ort-cpu", threads=1) as session:
        asyncio.run(work())
    metrics = session.metrics()
    assert (metrics.late, metrics.waiting, metrics.batch_rows.count) == (1, 0, 1)


def test_at_most_eight_calls_from_arun_to_the_plugin(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of isorun on the way of a request: on the caller's thread to the queue, and from there to the plugin."""
    monkeypatch.setattr(concurrency, "remembered", lambda subject: ConcurrencyPlan(1, None, 64))
    from isorun.session.scheduling.call_queue import CallQueue
    from isorun_backends.onnxruntime.executable import OrtExecutable

    ways: list[list[str]] = []

    def watch(owner: Any, name: str) -> None:
        original = getattr(owner, name)

        def watched(*arguments: Any) -> Any:
            frame, way = sys._getframe(1), []
            while frame is not None:
                if "/isorun/" in frame.f_code.co_filename or "/isorun_backends/" in frame.f_code.co_filename:
                    way.append(frame.f_code.co_name)
                frame = frame.f_back  # type: ignore[assignment]
            ways.append(way)
            return original(*arguments)

        monkeypatch.setattr(owner, name, watched)

    watch(CallQueue, "put")
    watch(OrtExecutable, "run")
    feeds = {name: array[None] for name, array in request(6).items()}
    with isorun.Session(model, "ort-cpu", threads=1) as session:
        ways.clear()
        (result,) = asyncio.run(session.arun(["pooler_output"], feeds))
        np.testing.assert_array_equal(result, session.run(["pooler_output"], feeds)[0])
    assert [way[-1] for way in ways[:2]] == ["arun", "_serve"]
    assert sum(map(len, ways[:2])) + 1 <= 8, ways
