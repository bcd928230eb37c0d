"""Results of an iterable: their order, their errors, how far requests are read ahead, and how that ends."""

import contextlib
import gc
import itertools
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any

import numpy as np
import pytest

import isorun
import small_bert
from isolation import wait_until
from isorun.errors import BackendFailed, InvalidFeeds
from isorun.types import Feeds
from recorder import Recorder, small
from singles import alone, assert_same, request


def test_an_error_of_the_iterable_comes_after_its_results() -> None:
    def requests() -> Iterator[Feeds]:
        yield small(2, 5)
        raise OSError("the disk is gone")

    results = Recorder().map(requests(), return_exceptions=True)
    assert next(results)[0].tolist() == [5, 5]
    with pytest.raises(OSError, match="disk"):
        next(results)
    with pytest.raises(StopIteration):
        next(results)


def test_an_endless_stream_is_read_no_further_than_a_window() -> None:
    read = itertools.count()
    closed = threading.Event()

    def requests() -> Iterator[Feeds]:
        try:
            while True:
                yield small(8, next(read))
        finally:
            closed.set()

    results = Recorder().map(requests(), max_tokens=64)
    for number in range(100):
        assert next(results)[0][0] == number
    time.sleep(0.1)
    assert next(read) <= 100 + 4 * 64 // 8 + 2
    results.close()
    results.close()
    assert closed.wait(5)
    with pytest.raises(StopIteration):
        next(results)


def test_leaving_early_stops_the_threads() -> None:
    def threads() -> set[str]:
        return {thread.name for thread in threading.enumerate() if thread.name.startswith("isorun-")}

    before = threads()
    with Recorder().map(small(3) for _ in itertools.count()) as results:
        next(results)
    results = Recorder().map(small(3) for _ in itertools.count())
    next(results)
    del results
    finished = Recorder().map([small(3)])
    assert len(list(finished)) == 1
    del finished
    assert wait_until(lambda: threads() <= before)


def test_a_slow_stream_waits_no_longer_than_asked() -> None:
    more = threading.Event()

    def requests() -> Iterator[Feeds]:
        yield small(2, 7)
        more.wait(30)

    results = Recorder().map(requests(), max_wait=0.01)
    start = time.monotonic()
    assert next(results)[0].tolist() == [7, 7]
    assert time.monotonic() - start < 20
    more.set()
    assert list(results) == []


def test_an_error_in_closing_the_iterable_comes_after_its_results() -> None:
    results = Recorder().map(closing_fails())
    assert next(results)[0][0] == 7
    with pytest.raises(OSError, match="cannot be closed"):
        next(results)
    with pytest.raises(StopIteration):
        next(results)


def test_an_error_that_nobody_takes_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    asked, more = threading.Event(), threading.Event()
    results = Recorder().map(closing_fails(asked, more))
    assert asked.wait(20)
    results.close()  # does not wait for the request that the iterable is at work on
    assert caplog.records == []
    more.set()
    results._thread.join(20)
    assert "the file cannot be closed" in caplog.text


def closing_fails(asked: threading.Event | None = None, more: threading.Event | None = None) -> Iterator[Feeds]:
    try:
        if asked and more:
            asked.set()
            more.wait(30)
        yield small(2, 7)
    finally:
        raise OSError("the file cannot be closed")


def test_an_iterable_may_close_the_results_itself() -> None:
    def requests() -> Iterator[Feeds]:
        try:
            while True:
                yield small(2)
        finally:
            results.close()

    results = Recorder().map(requests())
    next(results)
    results.close()
    assert list(results) == []


def test_each_gets_its_own_in_order(encoder: isorun.Session) -> None:
    lengths = np.random.default_rng(0).integers(1, 40, 60)
    requests = [request(int(length), seed) for seed, length in enumerate(lengths)]
    with encoder.map(requests, max_tokens=200) as results:
        for feeds, result in zip(requests, results, strict=True):
            assert_same(result, alone(encoder, feeds))


def test_results_left_at_an_error_leave_no_threads() -> None:
    def serving() -> set[threading.Thread]:
        return {thread for thread in threading.enumerate() if thread.name.startswith("isorun-")}

    before, model = serving(), Recorder()
    model.poison = 3

    def take() -> None:
        for _ in model.map([small(4, 3)]):
            pass

    with contextlib.suppress(BackendFailed):
        take()
    assert wait_until(lambda: gc.collect() >= 0 and serving() <= before)


def test_an_error_is_its_request_s_alone(encoder: isorun.Session) -> None:
    bad_index = request(4)
    bad_index["input_ids"][2] = small_bert.VOCABULARY
    bad_type = {**request(4), "input_ids": np.ones(4, np.float32)}
    requests: list[Any] = [request(3), bad_index, request(5), bad_type, {}, None, request(6)]
    results = encoder.map(requests)
    assert_same(next(results), alone(encoder, requests[0]))
    with pytest.raises(InvalidFeeds, match=r"got 60 at \[0, 2\]"):
        next(results)
    assert_same(next(results), alone(encoder, requests[2]))
    with pytest.raises(InvalidFeeds, match="float32"):
        next(results)
    with pytest.raises(InvalidFeeds, match="No feed for"):
        next(results)
    with pytest.raises(InvalidFeeds, match="mapping"):
        next(results)
    assert_same(next(results), alone(encoder, requests[6]))
    with pytest.raises(StopIteration):
        next(results)
    with pytest.raises(StopIteration):
        next(results)


class _Falsy(Exception):
    def __len__(self) -> int:
        return 0


def test_an_error_of_the_iterable_that_is_empty_is_an_error() -> None:
    def requests() -> Iterator[Feeds]:
        yield small(2, 5)
        raise _Falsy

    with pytest.raises(_Falsy):
        list(Recorder().map(requests()))


def test_a_result_that_was_waited_for_when_interrupted_comes_next(monkeypatch: pytest.MonkeyPatch) -> None:
    waiting, result, interrupted = threading.current_thread(), Future.result, threading.Event()

    def interrupting(self: Future[Any], timeout: float | None = None) -> Any:
        if threading.current_thread() is waiting and not interrupted.is_set():
            interrupted.set()
            raise KeyboardInterrupt
        return result(self, timeout)

    results = Recorder().map(small(2, number) for number in range(4))
    monkeypatch.setattr(Future, "result", interrupting)  # a signal would end a process in which OpenVINO has run
    with pytest.raises(KeyboardInterrupt):
        next(results)
    assert [row[0].tolist() for row in results] == [[number, number] for number in range(4)]
