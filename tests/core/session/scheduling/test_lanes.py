"""The threads of a session, and the requests that they take from its queue."""

import gc
import sys
import threading
from concurrent.futures import CancelledError, wait
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isolation import wait_until
from isorun.errors import BackendFailed, IsorunError, QueueFull, WorkerTimeout
from isorun.session.scheduling import call_queue
from isorun.session.scheduling.call_queue import CallQueue
from isorun.session.scheduling.calls import Batching, Call, Request
from isorun.types import Feeds, ModelInfo
from recorder import FIXED, PADDABLE, Recorder, put, small

ALONE = Batching()


class Gated(Recorder):
    """Runs wait until they are let through."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = threading.Event()
        self.entered = threading.Semaphore(0)
        self.rows: list[list[int]] = []

    def run(self, output_names: Any, feeds: Feeds) -> list[Any]:
        self.entered.release()
        assert self.gate.wait(20)
        self.rows.append(feeds["ids"][:, 0].tolist())
        return super().run(output_names, feeds)


def test_requests_share_the_threads_that_start(monkeypatch: pytest.MonkeyPatch) -> None:
    with Recorder().opened(lanes=3) as lanes:
        assert put(lanes, ALONE, small(1))[0].result(20)
        monkeypatch.setattr(threading.Thread, "start", no_thread)
        futures = [future for _ in range(8) for future in put(lanes, ALONE, small(1), small(1))]
        assert not wait(futures, 20).not_done


def test_without_a_thread_a_call_is_refused_and_not_queued(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Recorder()
    with model.opened() as lanes:
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", no_thread)
            with pytest.raises(IsorunError, match="thread"):
                put(lanes, ALONE, small(1), small(1))
        assert model.metrics.snapshot().waiting == 0
        assert put(lanes, ALONE, small(2))[0].result(20)
    assert model.batches == [(1, 2)]


def test_a_callback_that_exits_does_not_end_a_thread() -> None:
    model = Gated()
    with model.opened() as lanes:
        futures = [future for _ in range(6) for future in put(lanes, ALONE, small(1))]
        for future in futures:
            future.add_done_callback(lambda _: sys.exit(1))
        model.gate.set()
        assert not wait(futures, 20).not_done
        assert put(lanes, ALONE, small(2))[0].result(20)


def no_thread(_: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


@settings(max_examples=60, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 30), max_size=40),
    max_tokens=st.integers(1, 80),
    info=st.sampled_from((PADDABLE, FIXED)),
)
def test_any_lengths_within_any_budget(lengths: list[int], max_tokens: int, info: ModelInfo) -> None:
    model = Recorder()
    requests = [small(length, value) for value, length in enumerate(lengths)]
    got = list(model.map(requests, info, max_tokens=max_tokens))
    assert [result[0].tolist() for result in got] == [feeds["ids"].tolist() for feeds in requests]
    assert sum(rows for rows, _ in model.batches) == len(requests)
    assert all(rows == 1 or rows * longest <= max_tokens for rows, longest in model.batches)


def test_similar_lengths_share_a_batch() -> None:
    model = Recorder()
    list(model.map([small(length) for length in [2, 30] * 8], max_tokens=60, max_wait=60))
    assert sum(rows * longest for rows, longest in model.batches) == 8 * 2 + 8 * 30  # nothing was padded
    assert len(model.batches) < 16


@pytest.mark.parametrize(("stream", "first"), [(1, (2, 2)), (0, (2, 6))])
def test_requests_of_similar_length_come_first_unless_callers_wait(stream: int, first: tuple[int, int]) -> None:
    model = Recorder()
    lanes = model.lanes()
    futures = put(lanes, Batching(8, 60, 1000, stream), *(small(length) for length in (2, 6, 8, 8, 2)))
    lanes.close()
    assert all(future.done() for future in futures)
    assert model.batches[0] == first


def test_calls_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call of many requests delays others by its share of each batch only."""
    monkeypatch.setattr(call_queue, "_LAG", 60.0)
    model, batching = Gated(), Batching(4, 0.0, 4)
    with model.opened() as lanes:
        put(lanes, ALONE, small(1, 99)), put(lanes, ALONE, small(1, 99))  # one runs, one is next
        assert model.entered.acquire(timeout=20)
        assert wait_until(lambda: model.metrics.snapshot().running == 1 and len(lanes._queue) == 0)
        long = put(lanes, batching, *(small(1, value) for value in range(100, 108)))
        short = [put(lanes, batching, small(1, value)) for value in range(6)]
        middle = put(lanes, batching, *(small(1, value) for value in (10, 11)))
        model.gate.set()
        wait([*long, *middle, *(future for futures in short for future in futures)], 20)
    assert model.rows == [[99], [99], [100, 0, 1, 2], [3, 4, 5, 10], [101, 11, 102, 103], [104, 105, 106, 107]]


@given(
    calls=st.lists(st.tuples(st.integers(0, 30), st.integers(1, 12), st.booleans()), min_size=1, max_size=8),
    max_tokens=st.integers(1, 4),
)
def test_requests_of_a_call_are_served_as_if_they_arrived_one_by_one(
    calls: list[tuple[int, int, bool]], max_tokens: int
) -> None:
    queue, lag = CallQueue(1000), call_queue._LAG
    expected: dict[tuple[str], list[tuple[float, int]]] = {("even",): [], ("odd",): []}
    for number, (tenths, count, odd) in enumerate(sorted(calls)):
        kind, arrived = ("odd" if odd else "even",), tenths * lag
        requests = [Request(["ids"], {}, kind, length=1, arrived=arrived) for _ in range(count)]
        assert queue.put(Call(Batching(max_tokens)), requests)
        expected[kind] += [(arrived + place * lag, number) for place in range(count)]
    served: dict[tuple[str], list[tuple[float, int]]] = {kind: [] for kind in expected}
    while batch := queue.take(1000.0, lambda _: True):
        assert len(batch) <= max_tokens
        assert len({request.kind for request in batch}) == 1
        served[batch[0].kind] += [(request.turn, request.number) for request in batch]
    assert [[turn for turn, _ in order] for order in served.values()] == [
        sorted(turn for turn, _ in order) for order in expected.values()
    ]
    assert (len(queue), queue.requests()) == (0, [])


def test_a_long_call_that_has_waited_precedes_new_ones() -> None:
    queue, batching = CallQueue(1000), Batching(1)
    old, new = ([Request(["ids"], {}, ("kind",), length=1, arrived=at) for _ in range(20)] for at in (0.0, 5.0))
    queue.put(Call(batching), old)
    queue.put(Call(batching), new)
    assert [queue.take(6.0, lambda _: True)[0] for _ in range(40)] == [*old, *new]


def test_streams_and_calls_take_turns() -> None:
    queue, single = CallQueue(1000), Batching(2)
    stream = Call(Batching(2, stream=1))
    for arrived in (0.0, 0.0, 0.0, 0.0, 0.0, 0.0):
        queue.put(stream, [Request(["ids"], {}, ("stream",), length=1, arrived=arrived)])
    for arrived in (0.0, 0.0, 1.5, 1.5):
        queue.put(Call(single), [Request(["ids"], {}, ("call",), length=1, arrived=arrived)])
    batches = [queue.take(now, lambda _: True) for now in (1.0, 1.0, 2.0, 2.0, 2.0)]
    assert [[request.kind for request in batch] for batch in batches] == [
        [(name,)] * 2 for name in ("stream", "call", "stream", "call", "stream")
    ]


def test_a_call_is_admitted_whole_or_not_at_all() -> None:
    model = Gated()
    with model.opened(limit=4) as lanes:
        first = put(lanes, ALONE, *(small(1, value) for value in range(9)))  # the queue is empty
        assert model.entered.acquire(timeout=20)
        with pytest.raises(QueueFull, match="4 rows"):
            put(lanes, ALONE, small(1, 50))
        model.gate.set()
        wait(first, 20)
        assert [future.result()[0].item() for future in first] == list(range(9))
        model.gate.clear()
        put(lanes, ALONE, small(1, 60))
        assert wait_until(lambda: model.metrics.snapshot().waiting == 0)
        put(lanes, ALONE, *(small(1, 61 + value) for value in range(3)))
        for count in (3, 5):
            with pytest.raises(QueueFull):
                put(lanes, ALONE, *(small(1, 50) for _ in range(count)))
        model.gate.set()
    assert model.metrics.snapshot().rejected == 9
    assert [50] not in model.rows


def test_a_batch_that_fails_is_run_again_one_by_one() -> None:
    model = Recorder()
    model.poison = 3
    results = model.map([small(4, value) for value in range(1, 6)], max_wait=60, return_exceptions=True)
    got = list(results)
    assert isinstance(got[2], BackendFailed)
    assert [result[0][0] for index, result in enumerate(got) if index != 2] == [1, 2, 4, 5]
    assert model.batches == [(5, 4)] + [(1, 4)] * 5


def test_a_time_out_is_not_repeated() -> None:
    model = Recorder()
    model.poison, model.error = 3, WorkerTimeout
    got = list(model.map([small(4, value) for value in range(1, 6)], max_wait=60, return_exceptions=True))
    assert [type(error) for error in got] == [WorkerTimeout] * 5
    assert model.batches == [(5, 4)]


def test_a_cancelled_request_leaves_the_queue_at_once() -> None:
    model = Gated()
    with model.opened() as lanes:
        put(lanes, ALONE, small(1, 1))
        assert model.entered.acquire(timeout=20)
        assembled, queued, stays = (put(lanes, ALONE, small(1, value))[0] for value in (2, 3, 4))
        assert wait_until(lambda: len(lanes._queue) == 2)
        assert model.metrics.snapshot().waiting == 3
        assert queued.cancel()
        assert model.metrics.snapshot().waiting == 2
        assert wait([queued], 20).done
        assert assembled.cancel()
        model.gate.set()
        assert stays.result(20)[0].item() == 4
    assert model.rows == [[1], [4]]
    assert model.metrics.snapshot().waiting == 0


def test_an_abandoned_call_is_not_run_again_after_its_batch_failed() -> None:
    model = Gated()
    model.poison = 1
    with model.opened() as lanes:
        rows = [lanes._collator.row(None, small(1, value)) for value in (1, 2)]
        call = Call(Batching(8, 0.0, 8))
        lanes.put(call, rows)
        assert model.entered.acquire(timeout=20)
        call.abandoned = True
        model.gate.set()
        for row in rows:
            with pytest.raises(CancelledError):
                row.future.result(20)
    assert model.batches == [(2, 1)]


@pytest.mark.parametrize("cancel", [False, True])
def test_closing_runs_or_cancels_what_waits(cancel: bool) -> None:
    model = Recorder()
    lanes = model.lanes(lanes=3)
    (future,) = put(lanes, Batching(100, 60, 100), small(3))
    lanes.close(cancel=cancel)
    assert future.cancelled() is cancel
    assert len(model.batches) == (0 if cancel else 1)
    with pytest.raises(IsorunError, match="closed"):
        put(lanes, ALONE, small(2))


def test_lanes_can_be_closed_from_their_own_threads() -> None:
    model, closed = Gated(), threading.Event()
    lanes = model.lanes()
    first, *others = [put(lanes, ALONE, small(1))[0] for _ in range(5)]
    first.add_done_callback(lambda _: (lanes.close(), closed.set()))
    model.gate.set()
    assert closed.wait(20)
    assert all(future.result(20) for future in others)


def test_waiting_may_take_as_long_as_others_need() -> None:
    model = Recorder()
    with model.opened() as lanes:
        batching = Batching(8, float("inf"), 8)
        (first,), (second,) = put(lanes, batching, small(4)), put(lanes, batching, small(4))
        assert first.result(20)[0].shape == second.result(20)[0].shape == (4,)
    assert model.batches == [(2, 4)]


def test_warms_each_thread_and_raises_its_error() -> None:
    threads = set()
    with Recorder().opened(lanes=2) as lanes:
        lanes.warm([[lambda: threads.add(threading.current_thread().name)]] * 3)
        assert len(threads) == 3

        def fail() -> None:
            raise BackendFailed("broken")

        with pytest.raises(BackendFailed, match="broken"):
            lanes.warm([[fail]])
        (future,) = put(lanes, ALONE, small(2, 5))
        np.testing.assert_array_equal(future.result(20)[0], [5, 5])


def test_requests_precede_the_runs_that_warm_up() -> None:
    requested, futures = threading.Event(), []
    with Recorder().opened(lanes=1) as lanes:  # two threads, both with a run that waits for the request

        def request() -> None:
            futures.extend(put(lanes, ALONE, small(2, 5)))
            requested.set()

        def wait_for_it() -> None:
            futures[0].result(20)

        lanes.warm([[request, wait_for_it], [requested.wait, wait_for_it]])
        np.testing.assert_array_equal(futures[0].result(0)[0], [5, 5])


def test_the_future_of_a_request_does_not_keep_the_lanes() -> None:
    model = Recorder()
    before = set(threading.enumerate())
    lanes = model.lanes()
    (future,) = put(lanes, ALONE, small(2))
    future.result(20)
    lanes.close()
    gone = lanes._weak
    del lanes
    gc.collect()
    assert gone() is None
    assert set(threading.enumerate()) <= before


def test_the_limit_counts_rows() -> None:
    model = Recorder()
    collator, feeds = model.lanes()._collator, {"ids": np.zeros((3, 5), np.int64), "mask": np.ones((3, 5), np.int64)}
    queue = CallQueue(5)
    for _ in range(2):
        request = collator.request(None, feeds, shared=lambda: False)
        assert queue.put(Call(ALONE), [request])
        assert queue.admits(2)
        assert not queue.admits(3)
        assert queue.take(0.0, lambda _: True) == [request]


def test_small_calls_do_not_keep_out_a_large_one(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(call_queue.time, "monotonic", lambda: now)
    queue, rows = CallQueue(4), [Request(["each"], {}) for _ in range(9)]
    assert queue.put(Call(ALONE), rows[:1])
    assert not queue.put(Call(ALONE), rows[1:9])
    now = 0.9
    assert not queue.put(Call(ALONE), rows[1:9])
    now = 1.1
    assert queue.put(Call(ALONE), rows[1:9])
    assert not queue.admits(8)  # one at a time
    assert not queue.admits(1)
    while queue.take(now, lambda _: True):
        pass
    assert queue.admits(8)
