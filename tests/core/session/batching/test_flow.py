"""Requests on their way: how far they are read ahead, and how that ends."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

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
    for _ in range(100):
        if threads() <= before:
            break
        time.sleep(0.05)
    assert threads() <= before


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


class Closing:
    """An iterator of small requests that cannot be closed in peace."""

    def __init__(self, count: int, error: Exception | None = None) -> None:
        self._values = iter(range(count))
        self._error = error

    def __iter__(self) -> Iterator[Feeds]:
        return self

    def __next__(self) -> Feeds:
        for value in self._values:
            return small(2, value)
        raise self._error or StopIteration

    def close(self) -> None:
        raise OSError("the file cannot be closed")


def test_an_error_in_closing_the_iterable_comes_after_its_results() -> None:
    results = Recorder().map(Closing(2), return_exceptions=True)
    assert [next(results)[0][0] for _ in range(2)] == [0, 1]
    with pytest.raises(OSError, match="cannot be closed"):
        next(results)
    with pytest.raises(StopIteration):
        next(results)
    results.close()


def test_an_error_in_closing_hides_none_in_reading() -> None:
    results = Recorder().map(Closing(0, OSError("the disk is gone")))
    with pytest.raises(OSError, match="disk"):
        next(results)
    with pytest.raises(OSError, match="cannot be closed"):
        next(results)
    with pytest.raises(StopIteration):
        next(results)


def test_leaving_early_raises_what_closing_the_iterable_raised() -> None:
    results = Recorder().map(Closing(1000))
    assert next(results)[0][0] == 0
    deadline = time.monotonic() + 20
    while results._flow._tokens < 4 * 64 and time.monotonic() < deadline:
        time.sleep(0.01)  # until it is read as far ahead as it may be
    with pytest.raises(OSError, match="cannot be closed"), results:
        pass
    results.close()


def test_an_error_that_nobody_is_there_for_is_the_reading_thread_s(monkeypatch: pytest.MonkeyPatch) -> None:
    reported: list[Any] = []
    done, asked, more = threading.Event(), threading.Event(), threading.Event()

    def report(what: threading.ExceptHookArgs) -> None:
        reported.append((what.exc_value, what.thread and what.thread.name))
        done.set()

    def requests() -> Iterator[Feeds]:
        try:
            asked.set()
            more.wait(30)
            yield small(2)
        finally:
            raise OSError("the file cannot be closed")

    monkeypatch.setattr(threading, "excepthook", report)
    results = Recorder().map(requests())
    assert asked.wait(20)
    results.close()  # does not wait for the request that the iterable is at work on
    more.set()
    assert done.wait(20)
    ((error, thread),) = reported
    assert (str(error), thread) == ("the file cannot be closed", "isorun-map")


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
