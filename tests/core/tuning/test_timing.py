"""Candidates in alternating turns: what is compared, and what ends a measurement."""

import os
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
import pytest

from isorun.errors import BackendFailed, InvalidFeeds, IsorunError
from isorun.tuning import timing
from isorun.tuning.timing import TimingBudget, interleave, slowdowns

ROUNDS = TimingBudget(rounds=4, seconds=60.0)
SIX_ROUNDS = TimingBudget(rounds=6, seconds=60.0)


@pytest.fixture(autouse=True)
def unsettled(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if "settle" not in request.node.name:
        monkeypatch.setattr(timing, "settle", lambda processes: None)


def turns(order: list[str], **seconds: float | list[float]) -> dict[str, Callable[[], float]]:
    """Candidates that report these times, and add their names to ``order``."""

    def turn(name: str, values: Iterator[float]) -> float:
        order.append(name)
        return next(values)

    # The first turn compiles, and does not count.
    listed = {name: [50.0, *taken] if isinstance(taken, list) else [taken] * 99 for name, taken in seconds.items()}
    return {name: partial(turn, name, iter(values)) for name, values in listed.items()}


def test_the_order_alternates() -> None:
    order: list[str] = []
    interleave(turns(order, a=1.0, b=1.0), ROUNDS)
    assert "".join(order) == "abbaabbaab"


def test_drift_does_not_decide() -> None:
    """Every turn of ``b`` is faster than the one of ``a`` beside it, while the machine becomes slower."""
    times, _ = interleave(turns([], a=[1.0, 2.0, 4.0, 8.0], b=[0.9, 1.8, 3.6, 7.2]), ROUNDS)
    assert slowdowns(times) == {"a": pytest.approx(1 / 0.9), "b": 1.0}


def test_drops_what_is_shown_to_be_slower() -> None:
    """Four rounds show it for two of four candidates; a single round, or turns that overlap, show nothing."""
    order: list[str] = []
    times, _ = interleave(turns(order, a=1.0, b=1.6, c=[1.3] * 6, d=[9.0, 9.0, 9.0, 0.9, 0.9, 0.9]), SIX_ROUNDS)
    assert {name: len(taken) for name, taken in times.items()} == {"a": 6, "b": 4, "c": 4, "d": 6}
    assert slowdowns(times) == pytest.approx({"a": 1.0, "b": 1.6, "c": 1.3, "d": 4.95})


def test_a_dropped_candidate_is_not_the_fastest_when_the_machine_slows_down() -> None:
    times, _ = interleave(turns([], a=[1.0] * 3 + [9.0] * 3, b=[1.6] * 6), SIX_ROUNDS)
    assert slowdowns(times) == pytest.approx({"a": 1.0, "b": 1.6})


@pytest.mark.parametrize("count", [2, 3, 5, 8, 12])
@pytest.mark.parametrize("noise", ["pauses", "every second turn"])
def test_the_fastest_is_rarely_dropped(count: int, noise: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In 5 % of measurements at most, with noise that has a heavy tail; what takes thrice as long is dropped."""
    monkeypatch.setattr(timing, "family", lambda: [])
    rng, trials, dropped, last = np.random.default_rng(count), 200, 0, 0
    for _ in range(trials):
        speeds = np.array([*[1.0] * (count - 1), 3.0])  # of equal candidates, each is the fastest
        factors = {
            "pauses": 1 + rng.pareto(1.0, (8, count)) * 0.1,
            "every second turn": 1 + rng.exponential(1, (8, count)),
        }
        factors["every second turn"] *= rng.random((8, count)) < 0.5
        seconds = speeds * np.maximum(factors[noise], 1.0) * rng.lognormal(0, 0.02, (8, count))
        drawn = {str(column): iter(seconds[:, column]) for column in range(count)}
        times, _ = interleave({name: partial(next, values) for name, values in drawn.items()}, TimingBudget(7, 60.0))
        dropped += len(times["0"]) < 7
        last += len(times[str(count - 1)]) < 7
    assert dropped / trials <= 0.05
    assert last > 0


@pytest.mark.parametrize("error", [BackendFailed("it broke"), InvalidFeeds("it broke")])
def test_a_failure_costs_its_own_candidate(error: IsorunError) -> None:
    def fails() -> float:
        raise error

    times, failed = interleave({"a": lambda: 1.0, "b": fails}, ROUNDS)
    assert (list(times), failed) == (["a"], {"b": error})


def test_no_round_starts_after_the_time() -> None:
    times, _ = interleave({"a": lambda: time.sleep(0.02) or 0.02}, TimingBudget(rounds=99, seconds=0.01))
    assert len(times["a"]) == 1


def test_what_is_compiled_leaves_a_quarter_of_the_time() -> None:
    seconds = iter([0.2, *[0.01] * 99])
    times, _ = interleave({"a": lambda: time.sleep(next(seconds)) or 1.0}, TimingBudget(rounds=99, seconds=0.2))
    assert 1 < len(times["a"]) < 10


@pytest.mark.parametrize("spins", [0.0, 0.1])
def test_settle_waits_for_threads_that_spin(spins: float) -> None:
    def spin() -> None:
        end = time.perf_counter() + spins
        while time.perf_counter() < end:
            pass

    thread = threading.Thread(target=spin)
    thread.start()
    timing.settle([os.getpid()])
    assert not thread.is_alive()
