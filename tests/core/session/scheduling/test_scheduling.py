"""Concurrent requests: warm-up, plan, bounded queue, deadlines, metrics."""

import asyncio
import os
import re
import signal
import threading
from collections.abc import Iterable
from concurrent.futures import wait
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import isorun
import programs
import small_bert
from isolation import wait_until
from isorun.compilation.compiled_model import CompiledModel
from isorun.session.scheduling.metrics import Recorder
from isorun.tuning import concurrency
from isorun.tuning.concurrency import ConcurrencyPlan
from singles import alone, assert_same, request


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_bert.write(tmp_path_factory.mktemp("model") / "model.onnx")


def rows(lengths: Iterable[int]) -> list[dict[str, np.ndarray]]:
    """Requests of one row, with a batch axis."""
    return [{name: array[None] for name, array in request(length).items()} for length in lengths]


@pytest.mark.parametrize("backend", ["ort-cpu", pytest.param("openvino", marks=pytest.mark.long)])
def test_nothing_is_compiled_after_warmup(backend: str, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    requests, padded = rows(range(3, 30)), small_bert.feeds(np.tril(np.ones((8, 8), np.int64)))
    with isorun.Session(model, backend, threads=2) as session:
        before = session.metrics()
        plan = session.warmup([(1, 8), (4, 32), padded])
        assert session.metrics() == before
        compiled: list[Any] = []

        async def together() -> list[Any]:
            return await asyncio.gather(*(session.arun(None, feeds) for feeds in requests))

        with monkeypatch.context() as patch:
            patch.setattr(CompiledModel, "_compile", lambda *arguments: compiled.append(arguments))
            got = asyncio.run(together())
            session.run(None, padded)
            wait([session.submit(None, padded) for _ in range(4)])
            list(session.map([request(length) for length in range(3, 30)]))
        assert compiled == []
        for feeds, result in zip(requests, got, strict=True):
            assert_same(result, session.run(None, feeds))
    with isorun.Session(model, backend, threads=2) as again:  # remembered
        assert again.concurrency_plan == plan


FIRST_REQUEST = """
import asyncio, sys
import numpy as np
import isorun

async def first(session, feeds):
    before = {*sys.modules}
    await session.arun(None, feeds)
    print(sorted(sys.modules.keys() - before))

with isorun.Session(sys.argv[1], sys.argv[2], threads=2) as session:
    given = {each.name: np.ones((1, 6), np.int64) for each in session.get_inputs()}
    session.warmup([(1, 6)], measure=False)
    asyncio.run(first(session, given))
    asyncio.run(first(session, {name: array.tolist() for name, array in given.items()}))
"""


@pytest.mark.parametrize("batch_tokens", [0, 64])
def test_the_first_request_after_warmup_imports_nothing(model: Path, tmp_path: Path, batch_tokens: int) -> None:
    pinned = "from isorun.tuning import concurrency\n"
    pinned += f"concurrency.default_plan = lambda subject: concurrency.ConcurrencyPlan(2, 1, {batch_tokens})\n"
    printed = programs.printed(pinned + FIRST_REQUEST, model, "ort-cpu", ISORUN_CACHE_DIR=str(tmp_path))
    assert printed == "[]\n[]\n"


INTERRUPTED = """
import random, signal, sys, threading
import numpy as np
import isorun

class Late(Exception):
    pass

def handler(*_):
    if armed:
        raise Late

def report(unraisable):
    # A signal in Python's own Thread.start() can end the new thread, which Python reports.
    if not (isinstance(unraisable.exc_value, KeyError) and isinstance(unraisable.exc_value.args[0], threading.Thread)):
        sys.__unraisablehook__(unraisable)

sys.unraisablehook = report
armed, interruptions, generator = False, 0, random.Random(3)
signal.signal(signal.SIGALRM, handler)
session = isorun.Session(sys.argv[1], "ort-cpu", threads=1)
feeds = {spec.name: np.ones((1, 6), np.int64) for spec in session.get_inputs()}
session.submit(None, feeds).result()
while interruptions < 300:
    futures = []
    try:
        armed = True
        signal.setitimer(signal.ITIMER_REAL, 1e-5 + generator.random() * 2e-3)
        for _ in range(200):
            futures.append(session.submit(None, feeds))
        armed = False
    except Late:
        armed = False
        interruptions += 1
    for future in futures:
        future.result(60)
session.submit(None, feeds).result(60)
session.close()
print(session.metrics().waiting)
"""


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="the system has no timers that send signals")
def test_interrupted_submits_leave_the_session_usable(model: Path) -> None:
    assert programs.printed(INTERRUPTED, model) == "0\n"


def test_warmup_runs_each_length_between_those_given(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shapes, run = set(), CompiledModel.run

    def recorded(self: CompiledModel, names: Any, feeds: Any) -> Any:
        shapes.add(feeds["attention_mask"].shape)
        return run(self, names, feeds)

    monkeypatch.setattr(CompiledModel, "run", recorded)
    with isorun.Session(model, "ort-cpu", threads=1) as session:
        session.warmup(rows([4, 9]), measure=False)
    assert shapes == {(1, length) for length in range(4, 10)}


def test_overlapping_runs_use_models_with_fewer_threads(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[int | None] = []
    compile_ = CompiledModel._compile

    def recorded(self: CompiledModel, name: str, lowered: Any) -> Any:
        threads.append(self.config.threads)
        return compile_(self, name, lowered)

    monkeypatch.setattr(CompiledModel, "_compile", recorded)
    monkeypatch.setattr(concurrency, "remembered", lambda subject: ConcurrencyPlan(2, 2, 0))
    with isorun.Session(model, "ort-cpu", threads=4) as session:
        feeds = rows(range(8, 9))[0]
        session.submit(None, feeds).result(20)
        assert threads == [4]  # a request that is alone has all threads
        list(session.map([request(8)] * 64, max_tokens=16))
        assert threads == [4]  # and so has a batch of a map
        wait([session.submit(None, feeds) for _ in range(64)])
        assert set(threads) == {4, 2}


def test_a_full_queue_and_a_deadline(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with isorun.Session(model, "ort-cpu", threads=1, max_queue=2) as session:
        feeds, gate, run = rows(range(4, 5))[0], threading.Event(), CompiledModel.run
        monkeypatch.setattr(CompiledModel, "run", lambda *arguments: gate.wait(20) and run(*arguments))
        with pytest.raises(isorun.QueueFull):  # noqa: PT012  # as many as there are threads may start
            for _ in range(100):
                session.submit(None, feeds)
        with pytest.raises(isorun.QueueFull, match="At most 2 rows"):  # noqa: PT012  # a thread may start only now
            for _ in range(100):
                session.run_async(None, feeds, print, None)
        gate.set()
        assert wait_until(lambda: not session.metrics().waiting)
        asyncio.run(session.arun(None, feeds, max_tokens=10, timeout=20))
        with pytest.raises(isorun.DeadlineExceeded, match=r"within 0.01 s"):
            asyncio.run(session.arun(None, feeds, max_tokens=1000, max_wait=20, timeout=0.01))
        metrics = session.metrics()
        assert (metrics.rejected, metrics.late) == (2, 1)
    assert session.metrics().waiting == 0


async def one_by_one(
    session: isorun.Session, names: list[str] | None, requests: Iterable[dict[str, np.ndarray]]
) -> list[Any]:
    """The results of requests of which each is read after the one before was submitted."""
    tasks = []
    for sample in requests:
        tasks.append(asyncio.ensure_future(session.arun(names, sample)))
        await asyncio.sleep(0)
    return await asyncio.gather(*tasks)


@pytest.mark.parametrize("method", ["submit", "arun", "map", "run_batches"])
def test_arrays_may_be_filled_for_the_next_request(model: Path, method: str) -> None:
    samples = [small_bert.feeds(np.ones((1, 8), np.int64), seed) for seed in range(12)]
    with isorun.Session(model, "ort-cpu", threads=2) as session:
        buffers = {name: array.copy() for name, array in samples[0].items()}

        def requests() -> Iterable[dict[str, np.ndarray]]:
            for sample in samples:
                for name, array in sample.items():
                    buffers[name][...] = array
                yield buffers

        if method == "submit":
            results = [future.result() for future in [session.submit(None, sample) for sample in requests()]]
        elif method == "arun":
            results = asyncio.run(one_by_one(session, None, requests()))
        elif method == "map":
            results = list(session.map(requests()))
        else:
            results = list(session.run_batches(None, requests()))
        for sample, result in zip(samples, results, strict=True):
            assert_same(result, session.run(None, sample))


@pytest.mark.parametrize("method", ["submit", "run_async", "arun", "run_batches"])
@pytest.mark.parametrize("count", [1, 2])
def test_a_mapping_may_be_used_for_the_next_request(model: Path, method: str, count: int) -> None:
    samples = [small_bert.feeds(np.ones((count, length), np.int64)) for length in range(3, 15)]
    with isorun.Session(model, "ort-cpu", threads=2) as session:
        first, *others = [spec.name for spec in session.get_outputs()]
        reused: dict[str, np.ndarray] = {}
        names = [first]

        def requests() -> Iterable[dict[str, np.ndarray]]:
            for sample in samples:
                reused.clear()
                reused.update(sample)
                names[:] = [first]
                yield reused
                names[:] = others or [first]

        results: list[Any] = []
        if method == "submit":
            results = [future.result() for future in [session.submit(names, sample) for sample in requests()]]
        elif method == "run_async":
            for index, sample in enumerate(requests()):
                session.run_async(names, sample, lambda outputs, at, _: results.append((at, outputs)), index)
            wait_until(lambda: len(results) == len(samples))
            results = [outputs for _, outputs in sorted(results, key=lambda pair: pair[0])]
        elif method == "arun":
            results = asyncio.run(one_by_one(session, names, requests()))
        else:
            results = list(session.run_batches(names, requests()))
        assert len(results) == len(samples)
        for sample, result in zip(samples, results, strict=True):
            assert_same(result, session.run([first], sample))
        with pytest.raises(isorun.InvalidFeeds):
            list(session.run_batches(None, [samples[0], None, samples[1]]))  # type: ignore[list-item]


def test_callbacks_that_do_not_return_are_limited(model: Path) -> None:
    with isorun.Session(model, "ort-cpu", threads=1, max_queue=2) as session:
        feeds, gate = rows(range(4, 5))[0], threading.Event()
        with pytest.raises(isorun.QueueFull):  # noqa: PT012  # as many as there are threads may start
            for _ in range(100):
                session.run_async(None, feeds, lambda *_: gate.wait(20), None)
        gate.set()


def test_callbacks_may_wait_for_other_requests(model: Path) -> None:
    feeds, count = rows(range(4, 5))[0], 3 * (os.cpu_count() or 1)
    with isorun.Session(model, "ort-cpu", threads=1) as session:
        entered, done = threading.Barrier(count), [threading.Event() for _ in range(count)]
        failures: list[Exception] = []

        def callback(outputs: list[Any], event: threading.Event, error: str) -> None:
            try:
                entered.wait(20)  # every thread that could run requests is in a callback if callbacks are on them
                session.submit(None, feeds).result(20)
                nested = threading.Event()
                session.run_async(None, feeds, lambda *_: nested.set(), None)
                assert nested.wait(20)
            except Exception as failure:  # noqa: BLE001  # reported below
                failures.append(failure)
            event.set()

        for event in done:
            session.run_async(None, feeds, callback, event)
        assert all(event.wait(60) for event in done)
        assert failures == []


def test_measured_batches_change_no_result(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(concurrency, "remembered", lambda subject: ConcurrencyPlan(2, 1, 64))
    with isorun.Session(model, "ort-cpu", threads=2) as session:
        requests = rows(range(2, 40))

        submitted, run = threading.Event(), CompiledModel.run
        monkeypatch.setattr(CompiledModel, "run", lambda *arguments: submitted.wait(20) and run(*arguments))

        async def together() -> list[Any]:
            tasks = [asyncio.create_task(session.arun(["last_hidden_state"], feeds)) for feeds in requests]
            await asyncio.sleep(0)  # all of them are submitted now
            submitted.set()
            return await asyncio.gather(*tasks)

        got = asyncio.run(together())
        assert session.metrics().batch_rows.count < len(requests)
        for feeds, result in zip(requests, got, strict=True):
            assert_same(result, session.run(["last_hidden_state"], feeds))
        assert_same([alone(session, request(5))[0]], [got[3][0][0]])


def test_single_requests_warm_up_the_graph_of_their_batches(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(concurrency, "remembered", lambda subject: ConcurrencyPlan(2, 1, 64))
    with isorun.Session(model, "ort-cpu", threads=2) as session:
        session.warmup(rows([4, 20, 9]), measure=False)
        compiled: list[Any] = []
        monkeypatch.setattr(CompiledModel, "_compile", lambda *arguments: compiled.append(arguments))
        session.run(None, small_bert.feeds(np.tril(np.ones((20, 20), np.int64))))  # with padding
        assert compiled == []


def test_prometheus_page() -> None:
    recorder = Recorder()
    recorder.enter(1)
    recorder.leave(0.003)
    with recorder.run(4, 30, 10):
        recorder.enter(1)
    metrics = recorder.snapshot()
    assert (metrics.requests, metrics.waiting, metrics.padding_share) == (2, 1, 0.25)
    assert metrics.queue_seconds.percentile(99) == 0.004
    page = metrics.prometheus({"model": 'a "b"'})
    samples = dict(re.findall(r"^(isorun_\S+?{.*}) (\S+)$", page, re.MULTILINE))
    assert samples['isorun_tokens_total{model="a \\"b\\""}'] == "30"
    assert samples['isorun_batch_rows_bucket{model="a \\"b\\"",le="2"}'] == "0"
    assert samples['isorun_batch_rows_bucket{model="a \\"b\\"",le="+Inf"}'] == "1"
    assert len(samples) == len([line for line in page.splitlines() if not line.startswith("#")])
    plain = recorder.snapshot().prometheus()
    assert "isorun_waiting 1\n" in plain
    assert "# TYPE isorun_run_seconds histogram\n" in plain


def test_no_digits_are_lost_above_a_million() -> None:
    recorder = Recorder()
    recorder.enter(12_345_678)
    recorder.leave(1_234_567.875)
    with recorder.run(7_654_321, 123_456_789, 987_654_321):
        pass
    page = recorder.snapshot().prometheus()
    for sample in ("requests_total 12345678", "waiting 12345677", "queue_seconds_sum 1234567.875"):
        assert f"isorun_{sample}\n" in page
    for sample in ("batch_rows_sum 7654321", "tokens_total 123456789", "padding_total 987654321"):
        assert re.search(f"^isorun_{sample}(\\.0)?$", page, re.MULTILINE)
