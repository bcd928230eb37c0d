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


@dataclass(frozen=True)
class _Mean:
    """The geometric mean of times in milliseconds over models and shapes with these titles, with its interval."""

    mean: float
    interval: Interval | None
    titles: tuple[str, ...]


Means = Mapping[str, Mapping[str, _Mean]]
"""By cell and machine."""


def of(machines: Sequence[Machine], titles: Sequence[str]) -> Means:
    """The geometric means of each cell, over the models and shapes at which it is correct, with the same model and
    feeds, on all machines that have a correct result of it."""
    means: dict[str, dict[str, _Mean]] = {}
    for name in _names(machines):
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
            pairs = [(machine.name, _mean(machine, name, common)) for machine in having]
            means[name] = {machine: mean for machine, mean in pairs if mean is not None}
    return means


def _names(machines: Sequence[Machine]) -> list[str]:
    groups = (group for machine in machines for group in machine.groups.values())
    return list(dict.fromkeys(cell.name for group in groups for cell in group.cells))


def _mean(machine: Machine, name: str, titles: Sequence[str]) -> _Mean | None:
    """The median, over the rounds that all cells have, of a round's geometric mean, and its interval. Without two such
    rounds, the geometric mean of the cells' medians. ``None`` if the cell is not correct at each title."""
    cells = [cell for title in titles if (cell := machine.correct_cell(title, name)) is not None]
    if len(cells) < len(titles):
        return None
    calm = [{taken.number: taken.p50 for taken in summary.rounds(cell) if not taken.disturbed} for cell in cells]
    common = [number for number in calm[0] if all(number in rounds for rounds in calm)]
    means = [geometric_mean([rounds[number] for rounds in calm]) for number in common]
    if (interval := rank_interval(means)) is not None:
        return _Mean(median(means), interval, tuple(titles))
    return _Mean(geometric_mean([summary.median(cell) or math.nan for cell in cells]), None, tuple(titles))


def blocks(machines: Sequence[Machine], means: Means, workloads: int) -> Iterator[Block]:
    title = f"{workloads} models and shapes"
    absent = Value(None, NONE)
    most = {
        machine.name: max((len(by[machine.name].titles) for by in means.values() if machine.name in by), default=0)
        for machine in machines
    }
    rows, speed_ups = {}, {}
    for cell, by in means.items():
        count = len(next(iter(by.values())).titles)
        name = cell if count == workloads else f"{cell}, {count} of {workloads}"
        rows[name] = [
            Value(
                mean.mean,
                f"{number(mean.mean)}{_ends(mean.interval)}",
                count == most[machine.name] and mean.mean == _lowest(machine, mean.titles),
            )
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


def _lowest(machine: Machine, titles: Sequence[str]) -> float:
    """The lowest mean over these titles on a machine, also of cells that other machines have at other titles only."""
    means = (_mean(machine, name, titles) for name in _names([machine]))
    return min((mean.mean for mean in means if mean is not None), default=math.inf)


def _quotient(first: _Mean, second: _Mean) -> Interval | None:
    """The interval of a quotient: both intervals contain their medians with at least this probability."""
    if first.interval is None or second.interval is None:
        return None
    level = max(0.0, first.interval.level + second.interval.level - 1)
    return Interval(first.interval.low / second.interval.high, first.interval.high / second.interval.low, level)


def _ends(interval: Interval | None) -> str:
    return "" if interval is None else f" ({number(interval.low)} to {number(interval.high)})"


def best(machines: Sequence[Machine], means: Means, titles: Sequence[str]) -> Iterator[str]:
    """The cell with the lowest mean over all models and shapes, unless one that has no such mean is faster."""
    whole = [
        (mean.mean, name, machine, mean)
        for name, by in means.items()
        for machine, mean in by.items()
        if len(mean.titles) == len(titles)
    ]
    if not whole:
        return
    lowest, name, machine, mean = min(whole, key=lambda entry: entry[0])
    if lowest <= min(_lowest(machine, titles) for machine in machines):
        yield (
            f"Over all {len(titles)} models and shapes, {name} on {machine} has the lowest geometric mean of p50: "
            f"{number(lowest)} ms{_ends(mean.interval)}."
        )
