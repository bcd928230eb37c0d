from __future__ import annotations

from typing import cast

import pytest

from isorun_matrix.execution.processes import take_turns as module
from isorun_matrix.execution.processes.launch import Process
from isorun_matrix.execution.processes.main import Paused
from isorun_matrix.execution.processes.take_turns import take_turns


class Recorded:
    """Stands for a process that pauses ``turns + 1`` times; it fails when it has paused ``fails`` times."""

    def __init__(self, name: str, did: list[str], turns: int, mib: float, *, on_cpu: bool, fails: int | None) -> None:
        self.name = name
        self._did = did
        self._turns = turns
        self._paused = 0
        self._mib, self._on_cpu, self._fails = mib, on_cpu, fails

    def __enter__(self) -> Recorded:
        return self

    def __exit__(self, *_: object) -> None:
        self._did.append(f"{self.name} left")

    def proceed(self) -> Paused | None:
        if self._paused == self._fails or self._paused > self._turns:
            self._did.append(f"{self.name} ends")
            return None
        self._did.append(f"{self.name} {self._paused}")
        self._paused += 1
        return Paused(self._turns + 1 - self._paused, self._mib, self._on_cpu)


def run(
    monkeypatch: pytest.MonkeyPatch,
    turns: dict[str, int],
    mib: float = 1.0,
    accelerated: str = "",
    fails: dict[str, int] | None = None,
) -> list[str]:
    """What the processes did, with 10 MiB available."""
    monkeypatch.setattr(module, "available_mib", lambda: 10.0)
    did: list[str] = []

    def start(name: str) -> Process:
        on_cpu, when = name not in accelerated, (fails or {}).get(name)
        return cast(Process, Recorded(name, did, turns[name], mib, on_cpu=on_cpu, fails=when))

    ended = [name for name, _ in take_turns([*turns], start, lambda names, turn: sorted(names, reverse=turn % 2 == 1))]
    assert sorted(ended) == sorted(turns)
    return [event for event in did if "left" not in event]


def test_processes_measure_in_turn_and_finish_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    did = run(monkeypatch, {"a": 2, "b": 1, "c": 2})
    assert did == ["a 0", "b 0", "c 0", "a 1", "c 1", "c 2", "b 1", "a 2", "a ends", "b ends", "c ends"]


def test_fewer_turns_are_spread_over_those_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    did = run(monkeypatch, {"a": 6, "b": 2})
    assert did.index("a 2") < did.index("b 1") < did.index("a 4")
    assert did.index("a 5") < did.index("b 2")


def test_sessions_that_do_not_fit_together_are_not_open_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    did = run(monkeypatch, dict.fromkeys("abc", 1), mib=2.0)
    assert did == ["a 0", "b 0", "a 1", "b 1", "a ends", "b ends", "c 0", "c 1", "c ends"]


def test_a_cell_on_an_accelerator_is_measured_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    did = run(monkeypatch, dict.fromkeys("abc", 1), accelerated="b")
    assert did == ["a 0", "b 0", "b 1", "b ends", "c 0", "a 1", "c 1", "a ends", "c ends"]


def test_one_that_is_larger_than_all_memory_runs_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(monkeypatch, dict.fromkeys("ab", 1), 20.0) == ["a 0", "a 1", "a ends", "b 0", "b 1", "b ends"]


@pytest.mark.parametrize("when", [0, 1, 2])
def test_the_others_go_on_if_one_ends_early(monkeypatch: pytest.MonkeyPatch, when: int) -> None:
    did = run(monkeypatch, {"a": 2, "b": 2}, fails={"a": when})
    assert [event for event in did if event.startswith("b")] == ["b 0", "b 1", "b 2", "b ends"]
    assert did.count("a ends") == 1
