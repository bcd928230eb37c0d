"""Candidates in alternating turns: what is compared, and what ends a measurement."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from isorun.errors import BackendFailed, InvalidFeeds, IsorunError
from isorun.tuning import timing
from isorun.tuning.timing import TimingBudget, interleave, slowdowns

ROUNDS = TimingBudget(rounds=4, seconds=60.0)


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
    interleave(turns(order, a=1.0, b=1.01), ROUNDS)
    assert "".join(order) == "abbaabbaab"


def test_drift_does_not_decide() -> None:
    """Every turn of ``b`` is faster than the one of ``a`` beside it, while the machine becomes slower."""
    times, _ = interleave(turns([], a=[1.0, 2.0, 4.0, 8.0], b=[0.9, 1.8, 3.6, 7.2]), ROUNDS)
    assert slowdowns(times) == {"a": pytest.approx(1 / 0.9), "b": 1.0}


def test_drops_what_is_clearly_slower() -> None:
    order: list[str] = []
    times, _ = interleave(turns(order, a=1.0, b=1.6, c=1.3, d=1.05), ROUNDS)
    assert {name: len(taken) for name, taken in times.items()} == {"a": 4, "b": 1, "c": 2, "d": 4}
    assert slowdowns(times) == pytest.approx({"a": 1.0, "b": 1.6, "c": 1.3, "d": 1.05})


def test_a_dropped_candidate_is_not_the_fastest_when_the_machine_slows_down() -> None:
    times, _ = interleave(turns([], a=[1.0, 9.0, 9.0, 9.0], b=[1.6] * 4), ROUNDS)
    assert slowdowns(times) == pytest.approx({"a": 1.0, "b": 1.6})


def test_one_slow_turn_drops_nothing_for_good() -> None:
    times, _ = interleave(turns([], a=[1.0] * 4, b=[1.4, 0.5, 0.5, 0.5]), ROUNDS)
    assert slowdowns(times)["b"] == 1.0


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
