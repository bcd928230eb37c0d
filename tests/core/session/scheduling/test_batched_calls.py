"""``Session.arun`` and ``Session.map``: what the session adds to :mod:`isorun.session.scheduling.lanes`."""

import asyncio
import gc
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import isorun
import programs
import small_bert
from isorun.errors import InvalidFeeds, IsorunError
from isorun.tuning import concurrency
from isorun.tuning.concurrency import ConcurrencyPlan
from singles import alone, assert_same, request


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_bert.write(tmp_path_factory.mktemp("model") / "model.onnx")


@pytest.fixture(scope="module")
def session(model: Path) -> Iterator[isorun.Session]:
    with isorun.Session(model, "ort-cpu", threads=1) as opened:
        yield opened


def test_arun(session: isorun.Session) -> None:
    feeds = {name: array[None] for name, array in request(4).items()}

    async def work() -> list[Any]:
        return await session.arun(["pooler_output"], feeds)

    np.testing.assert_array_equal(asyncio.run(work())[0], session.run(["pooler_output"], feeds)[0])


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("backend", "end"),
    [
        ("ort-cpu", "next(results)"),
        ("openvino", "next(results)"),
        ("openvino", "next(results); del results"),
        ("openvino", "next(results); del results, session"),
    ],
)
def test_a_program_may_end_during_a_map(backend: str, end: str, model: Path) -> None:
    program = f"""
import itertools, isorun, singles
session = isorun.Session({str(model)!r}, {backend!r})
results = session.map(itertools.repeat(singles.request(60)), max_tokens=60_000)
{end}
"""
    programs.printed(program, timeout=60)


def test_concurrent_callers_share_batches(model: Path) -> None:
    requests = [request(length) for length in (3, 9, 4, 8, 5)]
    bad = {**request(4), "input_ids": np.ones(4, np.float32)}

    with isorun.Session(model, "ort-cpu", threads=1) as session:

        async def work() -> list[Any]:
            calls = [session.arun(None, feeds, max_tokens=60, max_wait=1.5) for feeds in [*requests, bad, request(6)]]
            return await asyncio.gather(*calls, return_exceptions=True)

        *got, failed, _ = asyncio.run(work())
        assert isinstance(failed, InvalidFeeds)
        metrics = session.metrics()
        assert (metrics.batch_rows.count, metrics.batch_rows.total) == (1, 6)
        assert (metrics.tokens, metrics.padding) == (35, 6 * 9 - 35)
        for feeds, result in zip(requests, got, strict=True):
            assert_same(result, alone(session, feeds))


@pytest.mark.parametrize("warm", [False, True])
def test_a_session_that_nobody_closed_is_collected_with_its_threads(
    model: Path, monkeypatch: pytest.MonkeyPatch, warm: bool
) -> None:
    monkeypatch.setattr(concurrency, "default_plan", lambda subject: ConcurrencyPlan(1, None, 60))
    before = set(threading.enumerate())
    session = isorun.Session(model, "ort-cpu", threads=1)
    if warm:
        session.warmup([(1, 4)], measure=False)
        assert any(thread.name.startswith("isorun-") for thread in set(threading.enumerate()) - before)
    asyncio.run(session.arun(None, request(4), max_tokens=60, max_wait=0))
    gone = weakref.ref(session)
    del session
    gc.collect()
    assert gone() is None
    for thread in set(threading.enumerate()) - before:
        if thread.name.startswith("isorun-"):
            thread.join(20)
            assert not thread.is_alive()


def test_a_closed_session_takes_nothing(model: Path) -> None:
    opened = isorun.Session(model, "ort-cpu", threads=1)
    opened.close()
    with pytest.raises(IsorunError, match="closed"):
        opened.map([])
    with pytest.raises(IsorunError, match="closed"):
        asyncio.run(opened.arun(None, {}, max_tokens=8))
