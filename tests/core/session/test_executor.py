"""The threads behind a session."""

from __future__ import annotations

import gc
import threading
import weakref

import pytest

from isorun.errors import IsorunError
from isorun.session.executor import Executor


class Batcher:
    """Records how it is closed."""

    def __init__(self) -> None:
        self.closed: list[dict[str, bool]] = []

    def close(self, **how: bool) -> None:
        self.closed.append(how)


def test_close_waits_for_submitted_work() -> None:
    executor, gate, done = Executor(), threading.Event(), []

    def work(number: int) -> int:
        gate.wait(10)
        done.append(number)
        return number

    futures = [executor.submit(work, number) for number in range(20)]
    closer = threading.Thread(target=executor.close)
    closer.start()
    gate.set()
    closer.join(10)
    assert not closer.is_alive()
    assert [future.result(0) for future in futures] == list(range(20))
    assert sorted(done) == list(range(20))
    for refused in (executor.check_open, lambda: executor.submit(work, 0), lambda: executor.batcher(0, Batcher)):
        with pytest.raises(IsorunError, match="closed"):
            refused()
    assert not executor.close()


def test_can_be_closed_from_its_own_thread() -> None:
    executor = Executor()
    assert executor.submit(executor.close).result(10)
    assert not executor.close()


def test_callers_with_equal_settings_share_a_batcher() -> None:
    executor = Executor()
    first = executor.batcher(("a", 1), Batcher)
    assert executor.batcher(("a", 1), Batcher) is first
    assert executor.batcher(("a", 2), Batcher) is not first
    assert executor.close()
    assert first.closed == [{"cancel": False}]


def test_threads_end_when_an_open_executor_is_collected() -> None:
    executor = Executor()
    batcher, reference = executor.batcher(0, Batcher), weakref.ref(executor)
    executor.submit(int).result(10)
    del executor
    gc.collect()
    assert reference() is None
    assert batcher.closed == [{"cancel": True, "wait": False}]
