import gc
import itertools
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from isorun import Session
from isorun_matrix.measurement import timing

FEEDS = cast("list[Any]", ["a", "b", "c"])


def session(run: Callable[[Any, int], Any] = lambda feeds, number: None) -> Session:
    """Stands for a session; ``run`` gets the feeds and the number of the run, from 0."""
    numbers = itertools.count()
    return cast(Session, SimpleNamespace(run=lambda _, feeds: run(feeds, next(numbers))))


def taking(seconds: float) -> Session:
    return session(lambda feeds, number: time.sleep(seconds))


def timed(session: Session, minimum: int, seconds: float = 0.0, seed: int = 0) -> timing.TimedRuns:
    """Runs of one turn."""
    runs = timing.TimedRuns(session, FEEDS, seed)
    runs.measure(minimum, seconds)
    return runs


def test_runs_use_the_feeds_in_turn() -> None:
    seen = []

    def run(feeds: Any, number: int) -> None:
        seen.append((feeds, gc.isenabled()))
        time.sleep(0.002)

    runs = timed(session(run), 4)
    runs.measure(1)
    assert seen == [(feeds, False) for feeds in ("a", "b", "c", "a", "b")]
    assert runs.samples.shape == (5,)
    assert runs.samples.dtype == np.int64
    assert (runs.samples >= 2_000_000).all()
    assert gc.isenabled()


def test_seconds_limit_the_runs_but_the_minimum_is_kept() -> None:
    assert len(timed(taking(0.01), 3, 0.1).samples) in range(3, 11)
    assert len(timed(taking(0.02), 3, 0.001).samples) == 3


def test_an_error_leaves_the_garbage_collector_on() -> None:
    with pytest.raises(ZeroDivisionError):
        timed(session(lambda feeds, number: 1 / number), 1)
    assert gc.isenabled()


def echo(feeds: Any, number: int) -> list[Any]:
    return [feeds, number]


def test_every_run_of_a_set_of_feeds_may_be_kept() -> None:
    chosen = set()
    for seed in range(30):
        kept = timed(session(echo), 12, seed=seed).kept
        assert {index: outputs for index, (_, outputs) in kept.items()} == {
            index: [FEEDS[index], number] for index, (number, _) in kept.items()
        }
        chosen |= {number for number, _ in kept.values()}
        assert {index: number for index, (number, _) in kept.items()} == timing.kept_runs(seed, 12, 3)
    assert chosen == set(range(12))


@pytest.mark.parametrize("seed", range(5))
def test_runs_that_are_forgotten_leave_no_trace(seed: int) -> None:
    runs = timed(session(echo), 5, seed=seed)
    roll_back = runs.checkpoint()
    runs.measure(4)
    roll_back()
    assert len(runs.samples) == 5
    runs.measure(7)
    assert {index: number for index, (number, _) in runs.kept.items()} == timing.kept_runs(seed, 12, 3)


def test_warm_up_lasts_until_runs_are_steady() -> None:
    def run(feeds: Any, number: int) -> None:  # a tenth faster with each run until the 40th
        time.sleep(0.02 * 0.9 ** min(number, 40))

    warmed = timing.warm_up(session(run), FEEDS, 5, None)
    assert warmed.steady
    assert 0 < warmed.typical < 0.01e9
    assert warmed.runs >= 24
    stopped = timing.warm_up(session(run), FEEDS, 5, 0.05)
    assert not stopped.steady
    assert stopped.runs < 10
    assert timing.warm_up(session(), FEEDS, 0, 1) == timing.WarmUp(0, steady=False, typical=0.0)


@pytest.mark.parametrize("caches", [True, False])
def test_a_cache_of_answers_is_seen(caches: bool) -> None:
    fed: list[Any] = []

    def run(feeds: Any, number: int) -> None:
        if not (caches and fed[-1:] == [feeds]):
            time.sleep(0.002)
        fed.append(feeds)

    repeated, varied = timing.repeated_and_varied(session(run), FEEDS[0], FEEDS[1:], 2e6, 0.05)
    assert (repeated < 0.5 * varied) == caches
