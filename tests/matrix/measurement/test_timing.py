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
    samples = timing.latencies(session(recorder), FEEDS, 5, None, 0).samples
    assert recorder.fed == ["a", "b", "c", "a", "b"]
    assert samples.shape == (5,)
    assert samples.dtype == np.int64
    assert (samples >= 2_000_000).all()
    assert recorder.collecting == [False] * 5
    assert gc.isenabled()


def test_seconds_limit_the_runs_but_every_feed_is_used() -> None:
    assert len(timing.latencies(session(Recorder(0.01)), FEEDS, None, 0.1, 0).samples) in range(3, 11)
    assert len(timing.latencies(session(Recorder(0.02)), FEEDS, None, 0.001, 0).samples) == 3


def test_an_error_leaves_the_garbage_collector_on() -> None:
    class Failing(Recorder):
        def run(self, names: None, feeds: Any) -> list[Any]:
            raise RuntimeError("no")

    with pytest.raises(RuntimeError):
        timing.latencies(session(Failing()), FEEDS, 1, None, 0)
    assert gc.isenabled()


def test_every_run_of_a_set_of_feeds_may_be_kept() -> None:
    class Echo(Recorder):
        def run(self, names: None, feeds: Any) -> list[Any]:
            self.fed.append(feeds)
            return [feeds, len(self.fed) - 1]

    chosen = set()
    for seed in range(30):
        kept = timing.latencies(session(Echo()), FEEDS, 12, None, seed).kept
        assert {index: outputs for index, (_, outputs) in kept.items()} == {
            index: [FEEDS[index], number] for index, (number, _) in kept.items()
        }
        chosen |= {number for number, _ in kept.values()}
    assert chosen == set(range(12))
    assert kept == timing.latencies(session(Echo()), FEEDS, 12, None, seed).kept


class Slowing(Recorder):
    """Gets faster by a tenth with each run until the 40th."""

    def run(self, names: None, feeds: Any) -> list[Any]:
        self.fed.append(feeds)
        time.sleep(0.02 * 0.9 ** min(len(self.fed), 40))
        return []


def test_warm_up_lasts_until_runs_are_steady() -> None:
    warmed = timing.warm_up(session(Slowing()), FEEDS, 5, None)
    assert warmed.steady
    assert warmed.runs >= 24
    stopped = timing.warm_up(session(Slowing()), FEEDS, 5, 0.05)
    assert not stopped.steady
    assert stopped.runs < 10
    assert timing.warm_up(session(Recorder()), FEEDS, 0, 1) == timing.WarmUp(0, steady=False)


@pytest.mark.parametrize("caches", [True, False])
def test_a_cache_of_answers_is_seen(caches: bool) -> None:
    class Cache(Recorder):
        def run(self, names: None, feeds: Any) -> list[Any]:
            if not (caches and self.fed and self.fed[-1] == feeds):
                time.sleep(0.002)
            self.fed.append(feeds)
            return []

    repeated, varied = timing.repeated_and_varied(session(Cache()), FEEDS[0], FEEDS[1:], 2e6, 0.05)
    assert (repeated < 0.5 * varied) == caches
