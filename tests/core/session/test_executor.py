"""The threads behind a session."""

from __future__ import annotations

import gc
import threading
import weakref

import pytest

from isorun.errors import IsorunError
from isorun.session.executor import Background


class Batcher:
    """Notes how it is closed."""

    def __init__(self) -> None:
        self.closed: list[dict[str, bool]] = []

    def close(self, **how: bool) -> None:
        self.closed.append(how)


def test_what_was_submitted_runs_before_it_is_closed() -> None:
    background, gate, done = Background(), threading.Event(), []

    def work(number: int) -> int:
        gate.wait(10)
        done.append(number)
        return number

    futures = [background.submit(work, number) for number in range(20)]
    closer = threading.Thread(target=background.close)
    closer.start()
    gate.set()
    closer.join(10)
    assert not closer.is_alive()
    assert [future.result(0) for future in futures] == list(range(20))
    assert sorted(done) == list(range(20))
    for refused in (background.check_open, lambda: background.submit(work, 0), lambda: background.batcher(0, Batcher)):
        with pytest.raises(IsorunError, match="This session is closed"):
            refused()
    assert not background.close(), "it is closed already"


def test_a_thread_of_its_own_may_close_it() -> None:
    background = Background()
    assert background.submit(background.close).result(10)
    assert background.closing


def test_callers_with_the_same_wishes_share_a_batcher_and_it_ends_with_a_wait() -> None:
    background = Background()
    first = background.batcher(("a", 1), Batcher)
    assert background.batcher(("a", 1), Batcher) is first
    assert background.batcher(("a", 2), Batcher) is not first
    assert background.close()
    assert first.closed == [{"cancel": False}]


def test_one_that_nobody_closed_ends_when_it_is_collected() -> None:
    background = Background()
    batcher, here = background.batcher(0, Batcher), weakref.ref(background)
    background.submit(int).result(10)
    del background
    gc.collect()
    assert here() is None
    assert batcher.closed == [{"cancel": True, "wait": False}]
