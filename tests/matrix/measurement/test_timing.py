from __future__ import annotations

import gc
import time
from typing import Any, cast

import numpy as np
import pytest

from isorun import Session
from isorun_matrix.measurement import timing


class Recorder:
    """Stands for a session: keeps what it was fed, and takes its time."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.fed: list[Any] = []
        self.collecting: list[bool] = []
        self._seconds = seconds

    def run(self, names: None, feeds: Any) -> list[Any]:
        self.fed.append(feeds)
        self.collecting.append(gc.isenabled())
        time.sleep(self._seconds)
        return []


FEEDS = cast("list[Any]", ["a", "b", "c"])


def session(recorder: Recorder) -> Session:
    return cast(Session, recorder)


def test_repetitions_use_the_feeds_in_turn() -> None:
    recorder = Recorder(0.002)
    samples = timing.latencies(session(recorder), FEEDS, 5, None)
    assert recorder.fed == ["a", "b", "c", "a", "b"]
    assert samples.shape == (5,)
    assert samples.dtype == np.int64
    assert (samples >= 2_000_000).all()
    assert recorder.collecting == [False] * 5
    assert gc.isenabled()


def test_seconds_limit_the_runs_but_every_feed_is_used() -> None:
    assert len(timing.latencies(session(Recorder(0.01)), FEEDS, None, 0.1)) in range(3, 11)
    assert len(timing.latencies(session(Recorder(0.02)), FEEDS, None, 0.001)) == 3


def test_an_error_leaves_the_garbage_collector_on() -> None:
    class Failing(Recorder):
        def run(self, names: None, feeds: Any) -> list[Any]:
            raise RuntimeError("no")

    with pytest.raises(RuntimeError):
        timing.latencies(session(Failing()), FEEDS, 1, None)
    assert gc.isenabled()


def test_warm_up_stops_at_its_count_or_time() -> None:
    recorder = Recorder()
    assert timing.warm_up(session(recorder), FEEDS, 4, None) == 4
    assert recorder.fed == ["a", "b", "c", "a"]
    assert timing.warm_up(session(Recorder()), FEEDS, 0, 1) == 0
    assert timing.warm_up(session(Recorder(0.02)), FEEDS, 1000, 0.05) in range(1, 4)
