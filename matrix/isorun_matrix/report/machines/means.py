"""Geometric means over models and shapes, for each machine."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import geometric_mean, median

from isorun_matrix.measurement.statistics.latencies import Interval, rank_interval
from isorun_matrix.report import summary
from isorun_matrix.report.formatting import NONE, number, ratio
from isorun_matrix.report.machines.side_by_side import Block, Machine, Value, marks
from isorun_matrix.results.records import CellResult


@dataclass(frozen=True)
class _Mean:
    """The geometric mean of times in milliseconds over some models and shapes, with its interval."""

    mean: float
    interval: Interval | None
    count: int


Means = Mapping[str, Mapping[str, _Mean]]
"""By cell and machine."""


def of(machines: Sequence[Machine], titles: Sequence[str]) -> Means:
    """The geometric means of each cell, over the models and shapes at which it is correct, with the same model and
    feeds, on all machines that have a correct result of it."""
    names = dict.fromkeys(
        cell.name for machine in machines for group in machine.groups.values() for cell in group.cells
    )
    means: dict[str, dict[str, _Mean]] = {}
    for name in names:
        having = [machine for machine in machines if any(machine.correct_cell(title, name) for title in titles)]
        common = [
            title
            for title in titles
            if all(
                machine.correct_cell(title, name) and not {*"mf"} & {*marks(having[0], machine, title, name)}
                for machine in having
            )
        ]
        if having and common:
            means[name] = {
                machine.name: _mean([machine.correct_cell(title, name) for title in common]) for machine in having
            }
    return means


def _mean(cells: Sequence[CellResult | None]) -> _Mean:
    """The median, over the rounds that all cells have, of a round's geometric mean, and its interval. Without two such
    rounds, the geometric mean of the cells' medians."""
    right = [cell for cell in cells if cell is not None]
    calm = [summary.calm_rounds(cell) for cell in right]
    common = [number for number in calm[0] if all(number in rounds for rounds in calm)]
    means = [geometric_mean([rounds[number] for rounds in calm]) for number in common]
    if (interval := rank_interval(means)) is not None:
        return _Mean(median(means), interval, len(right))
    return _Mean(geometric_mean([summary.median(cell) or math.nan for cell in right]), None, len(right))


def blocks(machines: Sequence[Machine], means: Means, workloads: int) -> Iterator[Block]:
    title = f"{workloads} models and shapes"
    absent = Value(None, NONE)
    fastest = {
        machine.name: _fastest([by[machine.name] for by in means.values() if machine.name in by])
        for machine in machines
    }
    rows, speed_ups = {}, {}
    for cell, by in means.items():
        count = next(iter(by.values())).count
        name = cell if count == workloads else f"{cell}, {count} of {workloads}"
        rows[name] = [
            Value(mean.mean, f"{number(mean.mean)}{_ends(mean.interval)}", mean.mean == fastest[machine.name])
            if (mean := by.get(machine.name))
            else absent
            for machine in machines
        ]
        if (first := by.get(machines[0].name)) and len(by) > 1:
            speed_ups[name] = [
                Value(first.mean / mean.mean, f"{ratio(first.mean / mean.mean)}{_ends(_quotient(first, mean))}")
                if (mean := by.get(machine.name)) and machine is not machines[0]
                else absent
                for machine in machines
            ]
    if rows:
        yield Block(title, "geometric mean of p50, ms", rows)
    if speed_ups:
        yield Block(title, f"speed-up over {machines[0].name}, geometric mean", speed_ups)


def _fastest(means: Sequence[_Mean]) -> float | None:
    """The least of the means over the most models and shapes: others are of another work."""
    most = max((mean.count for mean in means), default=0)
    return min((mean.mean for mean in means if mean.count == most), default=None)


def _quotient(first: _Mean, other: _Mean) -> Interval | None:
    """The interval of a quotient: both intervals contain their medians with at least this probability."""
    if first.interval is None or other.interval is None:
        return None
    level = max(0.0, first.interval.level + other.interval.level - 1)
    return Interval(first.interval.low / other.interval.high, first.interval.high / other.interval.low, level)


def _ends(interval: Interval | None) -> str:
    return "" if interval is None else f" ({number(interval.low)} to {number(interval.high)})"


def best(means: Means, workloads: int) -> Iterator[str]:
    whole = [
        (mean.mean, name, machine, mean)
        for name, by in means.items()
        for machine, mean in by.items()
        if mean.count == workloads
    ]
    if whole:
        _, name, machine, mean = min(whole, key=lambda entry: entry[0])
        yield (
            f"Over all {workloads} models and shapes, {name} on {machine} has the lowest geometric mean of p50: "
            f"{number(mean.mean)} ms{_ends(mean.interval)}."
        )
