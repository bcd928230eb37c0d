import itertools
from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest

from isorun.system.disturbance import Scheduled
from isorun_matrix.measurement import turns
from isorun_matrix.measurement.energy import Counters
from isorun_matrix.measurement.timing import TimedRuns
from isorun_matrix.measurement.turns import Turn, Usage, divide


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ((5, None, 1.0, 4, 1e6), [Turn(1, 0.2)] * 5),
        ((1, None, 1.0, 4, 1e6), [Turn(4, 1.0)]),
        ((5, None, 1.0, 4, 150e6), [Turn(2, 0.5)] * 2),  # 6 runs
        ((5, None, 1.0, 4, 9e9), [Turn(4, 1.0)]),
        ((5, 32, None, 4, 1e6), [Turn(6, 0), Turn(6, 0), Turn(7, 0), Turn(6, 0), Turn(7, 0)]),
        ((5, 2, None, 4, 1e6), [Turn(2, 0)]),
    ],
    ids=["fast", "one turn", "slow", "very slow", "repetitions", "few repetitions"],
)
def test_turns_have_a_few_runs_each(
    arguments: tuple[int, int | None, float | None, int, float], expected: list[Turn]
) -> None:
    most, repetitions, seconds, feeds, typical = arguments
    assert divide(most, repetitions, seconds, feeds=feeds, typical=typical) == expected


class Machine:
    """Stands for the runs, the clock and the kernel of a machine on which threads wait: for each measurement, the share
    of its time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, waits: list[float], seconds: float) -> None:
        self.now = self.waited = self.stolen = 0
        self.measured: list[int] = []
        self._numbers, self._waits, self._seconds = itertools.count(), waits, seconds
        monkeypatch.setattr(turns, "perf_counter_ns", lambda: self.now)
        monkeypatch.setattr(turns, "scheduled", lambda _: Scheduled(self.now, self.waited, self.stolen, self.now))

    def checkpoint(self) -> Callable[[], object]:
        return self.measured.pop

    def measure(self, minimum: int, seconds: float) -> None:
        number = next(self._numbers)
        self.now += int(self._seconds * 1e9)
        self.waited += int(self._waits[number] * self._seconds * 1e9)
        self.stolen += 10_000_000  # a tick
        self.measured.append(number)


@pytest.mark.parametrize(
    ("waits", "seconds", "kept", "waited"),
    [
        ([0.0] * 2, 0.1, [0, 1], 0.0),
        ([0.5, 0.5, 0.0, 0.0], 0.1, [2, 3], 0.0),
        ([0.04, 0.0], 0.1, [0, 1], 0.02),
        ([0.5] * 99, 2.0, [2, 3], 0.5),
        ([0.5] * 99, 6.0, [0, 1], 0.5),
    ],
    ids=["calm", "a burst", "a little", "always", "long turns"],
)
def test_a_disturbed_turn_is_measured_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, waits: list[float], seconds: float, kept: list[int], waited: float
) -> None:
    machine, usage = Machine(monkeypatch, waits, seconds), Usage()
    left = list(turns.measure(cast(TimedRuns, machine), [Turn(1, seconds)] * 2, 1, [], usage, Counters(tmp_path)))
    assert left == [2, 1]
    assert machine.measured == kept
    assert usage.duration == int(2 * seconds * 1e9)
    assert usage.shares(1)[0] == pytest.approx(waited)


def test_the_share_of_waiting_is_of_all_threads() -> None:
    assert Usage(Scheduled(0, 20, None, 0), 20).shares(4) == (0.25, None)
