"""Requests on their way: how far they are read ahead, and how that ends."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator

import pytest

from isolation import wait_until
from isorun.types import Feeds
from recorder import Recorder, small


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
