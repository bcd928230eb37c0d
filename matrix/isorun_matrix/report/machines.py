"""Several machines side by side: machines as columns, the winner on each and overall, and what differs between them.

Rounds of two machines are not paired, so machines are compared by permutation of rounds, as two runs are.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from rich.console import Group as Stack
from rich.console import RenderableType
from rich.text import Text

from isorun_matrix.measurement import comparisons
from isorun_matrix.measurement.statistics import RankInterval, rank_interval
from isorun_matrix.report import markdown, summary, terminal
from isorun_matrix.report.formatting import NONE, number, ratio
from isorun_matrix.results.machines import MachineRuns
from isorun_matrix.results.records import CellResult, RecordedMachine, Run
from isorun_matrix.text import printable

_CHANCE = 0.05
_ENOUGH = 4  # rounds on each machine: with three, no split of six rounds is rarer than one in 20
_SMALL = 1.02
_LEGEND = {"m": "the model differs", "f": "the feeds differ", "s": "the software differs"}


@dataclass(frozen=True)
class Value:
    """A figure of a machine; ``leads`` if the cell is the fastest there, or tied with it."""

    number: float | None
    text: str
    leads: bool = False


@dataclass(frozen=True)
class Block:
    """A figure of the cells of a model and shape (or of all), with a value for each machine."""

    title: str
    figure: str
    rows: Mapping[str, Sequence[Value]]


@dataclass(frozen=True)
class Overview:
    """What several machines show together; ``means`` are over all models and shapes."""

    machines: Sequence[str]
    conclusions: Sequence[str]
    figures: Sequence[Block]
    means: Sequence[Block]
    notes: Sequence[str]

    @property
    def blocks(self) -> Sequence[Block]:
        """The figures and the means."""
        return [*self.figures, *self.means]


@dataclass(frozen=True)
class _Machine:
    """A machine: its run, its entry in the spec, and the groups of its cells."""

    name: str
    run: Run
    feeds: Mapping[str, str]
    groups: Mapping[str, summary.Group] = field(default_factory=dict)

    @classmethod
    def of(cls, runs: MachineRuns, name: str) -> _Machine:
        groups = {group.title: group for group in summary.groups(runs.runs[name].cells)}
        return cls(name, runs.runs[name], runs.feeds[name], groups)

    @property
    def entry(self) -> RecordedMachine:
        return self.run.spec.machines.get(self.name, RecordedMachine())

    def cell(self, title: str, name: str) -> CellResult | None:
        cells = self.groups[title].cells if title in self.groups else ()
        return next((cell for cell in cells if cell.name == name), None)

    def right(self, title: str, name: str) -> CellResult | None:
        """The same, if its outputs are correct."""
        cell = self.cell(title, name)
        return cell if cell is not None and cell.status == "ok" and cell.result is not None else None


def overview(runs: MachineRuns) -> Overview:
    """Compare the machines of a run."""
    machines = [_Machine.of(runs, name) for name in runs.runs]
    titles = list(dict.fromkeys(title for machine in machines for title in machine.groups))
    figures = [block for title in titles for block in _blocks(machines, title)]
    means = _means(machines, titles) if len(titles) > 1 else {}
    conclusions = [line for title in titles for line in _conclusions(machines, title)]
    conclusions += _best_mean(means, len(titles))
    return Overview(
        [*runs.runs], conclusions, figures, [*_mean_blocks(machines, means, len(titles))], [*_notes(machines)]
    )


def render(found: Overview, width: int) -> RenderableType:
    """The overview in a terminal, ``width`` characters wide."""
    return Stack(
        *(Text(printable(line)) for line in found.conclusions),
        Text(),
        *_tables(found.machines, found.figures, width),
        *_tables(found.machines, found.means, width),
        *(Text(printable(note)) for note in found.notes),
    )


def _tables(machines: Sequence[str], blocks: Sequence[Block], width: int) -> list[RenderableType]:
    drawn = {
        f"{block.title}: {block.figure}": [
            [Text(printable(name)), *(Text(value.text, "bold green" if value.leads else "") for value in values)]
            for name, values in block.rows.items()
        ]
        for block in blocks
    }
    numeric = [False, *(True for _ in machines)]
    return [*terminal.tables(["", *machines], numeric, drawn, width), Text()] if drawn else []


def as_markdown(found: Overview) -> str:
    """The same as GitHub's Markdown."""
    numeric = [False, *(True for _ in found.machines)]
    lines = ["# Machines compared", "", *(f"- {markdown.escaped(line)}" for line in found.conclusions), ""]
    for block in found.blocks:
        rows = [
            [markdown.escaped(name), *(f"**{value.text}**" if value.leads else value.text for value in values)]
            for name, values in block.rows.items()
        ]
        headers = [markdown.escaped(block.figure), *map(markdown.escaped, found.machines)]
        lines += [f"## {markdown.escaped(block.title)}", "", *markdown.table(headers, numeric, rows), ""]
    return "\n".join([*lines, *(f"- {markdown.escaped(note)}" for note in found.notes)]) + "\n"


def as_csv(found: Overview) -> str:
    """The same as comma-separated values, with a column for each machine."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["cells", "figure", "cell", *found.machines])
    for block in found.blocks:
        for name, values in block.rows.items():
            writer.writerow([block.title, block.figure, name, *(value.number for value in values)])
    return out.getvalue()


def _blocks(machines: Sequence[_Machine], title: str) -> Iterator[Block]:
    cells = [cell for machine in machines if title in machine.groups for cell in machine.groups[title].cells]
    names = list(dict.fromkeys(cell.name for cell in cells))
    scenarios = list(dict.fromkeys(load.name for cell in cells for load in cell.loads))
    figures: list[tuple[str, Callable[[_Machine, CellResult], float | None]]] = [
        ("p50 ms", lambda _, cell: summary.median(cell)),
        *((f"{name}, requests/s", _rate_in(name)) for name in scenarios),
        ("CPU ms", lambda _, cell: None if cell.result is None else cell.result.cpu_ms),
        ("cost of a million requests", _cost),
        ("joules for a request", _energy),
    ]
    for figure, of in figures:
        rows = {name: [_value(machine, title, name, of, machines) for machine in machines] for name in names}
        if any(value.number is not None for values in rows.values() for value in values):
            if figure == "p50 ms":
                noises = [machine.groups[title].noise if title in machine.groups else None for machine in machines]
                if any(noise is not None for noise in noises):
                    rows["noise"] = [Value(each, NONE if each is None else f"{each:.1%}") for each in noises]
            yield Block(title, figure, rows)


def _value(
    machine: _Machine,
    title: str,
    name: str,
    of: Callable[[_Machine, CellResult], float | None],
    machines: Sequence[_Machine],
) -> Value:
    cell = machine.cell(title, name)
    if cell is None:
        return Value(None, NONE)
    figure = of(machine, cell)
    if cell.status != "ok" or figure is None:
        return Value(None, NONE if cell.status == "ok" else str(cell.status))
    first = next(other for other in machines if other.right(title, name) is not None)
    marks = "".join(_marks(first, machine, title, name))
    return Value(figure, number(figure) + (f" ({marks})" if marks else ""), machine.groups[title].leads(cell))


def _marks(first: _Machine, other: _Machine, title: str, name: str) -> Iterator[str]:
    """What differs between a cell on two machines, as letters of the legend."""
    cell, own = first.right(title, name), other.right(title, name)
    if cell is None or own is None or cell.result is None or own.result is None:
        return
    ran, here = cell.result.provenance, own.result.provenance
    if ran.fingerprint != here.fingerprint:
        yield "m"
    if first.feeds.get(cell.id) != other.feeds.get(own.id):
        yield "f"
    if (ran.versions, first.run.environment.python) != (here.versions, other.run.environment.python):
        yield "s"


def _rate_in(scenario: str) -> Callable[[_Machine, CellResult], float | None]:
    def rate(_: _Machine, cell: CellResult) -> float | None:
        found = next((load.result for load in cell.loads if load.name == scenario), None)
        return None if found is None else found.requests_per_s

    return rate


def _rate(cell: CellResult) -> float | None:
    """Requests a second: within the bound of the first ``server`` scenario, else of one request after another."""
    served = [load.result for load in cell.loads if load.load.get("scenario") == "server" and load.result is not None]
    if served:
        return served[0].requests_per_s or None
    return None if cell.result is None else cell.result.throughput.requests_per_s


def _cost(machine: _Machine, cell: CellResult) -> float | None:
    cost, rate = machine.entry.cost, _rate(cell)
    return None if cost is None or rate is None else cost / 3600 / rate * 1e6


def _energy(machine: _Machine, cell: CellResult) -> float | None:
    watts, rate = machine.entry.watts, _rate(cell)
    return None if watts is None or rate is None else watts / rate


def _conclusions(machines: Sequence[_Machine], title: str) -> Iterator[str]:
    """The winner on each machine, and overall."""
    found = []
    for machine in machines:
        if (group := machine.groups.get(title)) is not None:
            yield f"{title} on {machine.name}: {group.conclusion}"
            if group.fastest is not None and (p50 := summary.median(group.fastest)) is not None:
                found.append((p50, machine.name, group))
    if len(found) < 2:
        return
    found.sort(key=lambda each: each[:2])
    best, *others = ((name, group, summary.calm_rounds(group.fastest)) for _, name, group in found if group.fastest)
    name, group, calm = best
    leader = f"{title} overall: {group.fastest and group.fastest.name} on {name}"
    if min(map(len, (calm, *(rounds for *_, rounds in others)))) < _ENOUGH:
        yield f"{leader} has the lowest median, but there are too few undisturbed rounds for a verdict."
        return
    chances = comparisons.permutation_test([calm] * len(others), [rounds for *_, rounds in others])
    ratios = [p50 / found[0][0] for p50, *_ in found[1:]]
    floors = [max(_SMALL, 1 + (group.noise or 0), 1 + (other.noise or 0)) for _, other, _ in others]
    unclear = [
        other
        for (other, *_), chance, by, floor in zip(others, chances, ratios, floors, strict=True)
        if chance > _CHANCE or by < floor
    ]
    if unclear:
        yield f"{leader} has the lowest median, but these runs cannot tell it from the fastest on {', '.join(unclear)}."
    else:
        yield f"{leader} is the fastest: the fastest on {others[0][0]} takes {number(ratios[0])} x as long."


@dataclass(frozen=True)
class _Mean:
    """The geometric mean of medians in milliseconds over some models and shapes, with its interval."""

    mean: float
    interval: RankInterval | None
    count: int


_Means = Mapping[str, Mapping[str, _Mean]]
"""By cell and machine."""


def _means(machines: Sequence[_Machine], titles: Sequence[str]) -> _Means:
    """The geometric means of each cell, over the models and shapes at which it is correct on all machines that have a
    correct result of it."""
    names = dict.fromkeys(
        cell.name for machine in machines for group in machine.groups.values() for cell in group.cells
    )
    found: dict[str, dict[str, _Mean]] = {}
    for name in names:
        having = [machine for machine in machines if any(machine.right(title, name) for title in titles)]
        common = [title for title in titles if all(machine.right(title, name) for machine in having)]
        if having and common:
            found[name] = {machine.name: _mean([machine.right(title, name) for title in common]) for machine in having}
    return found


def _mean(cells: Sequence[CellResult | None]) -> _Mean:
    """The interval is that of the median, over the rounds that all cells have, of a round's geometric mean."""
    right = [cell for cell in cells if cell is not None]
    mean = math.exp(float(np.mean([math.log(summary.median(cell) or math.nan) for cell in right])))
    calm = [summary.calm_rounds(cell) for cell in right]
    common = [number for number in calm[0] if all(number in rounds for rounds in calm)]
    logs = [float(np.mean([math.log(rounds[number]) for rounds in calm])) for number in common]
    interval = rank_interval(logs)
    if interval is not None:
        interval = RankInterval(math.exp(interval.low), math.exp(interval.high), interval.level)
    return _Mean(mean, interval, len(right))


def _mean_blocks(machines: Sequence[_Machine], means: _Means, workloads: int) -> Iterator[Block]:
    title = f"{workloads} models and shapes"
    absent = Value(None, NONE)
    fastest = {
        machine.name: min((by[machine.name].mean for by in means.values() if machine.name in by), default=None)
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


def _quotient(first: _Mean, other: _Mean) -> RankInterval | None:
    """The interval of a quotient: both intervals contain their medians with at least this probability."""
    if first.interval is None or other.interval is None:
        return None
    level = max(0.0, first.interval.level + other.interval.level - 1)
    return RankInterval(first.interval.low / other.interval.high, first.interval.high / other.interval.low, level)


def _ends(interval: RankInterval | None) -> str:
    return "" if interval is None else f" ({number(interval.low)} to {number(interval.high)})"


def _best_mean(means: _Means, workloads: int) -> Iterator[str]:
    whole = [
        (mean.mean, name, machine, mean)
        for name, by in means.items()
        for machine, mean in by.items()
        if mean.count == workloads
    ]
    if whole:
        _, name, machine, mean = min(whole, key=lambda each: each[0])
        yield (
            f"Over all {workloads} models and shapes, {name} on {machine} has the lowest geometric mean of p50: "
            f"{number(mean.mean)} ms{_ends(mean.interval)}."
        )


def _notes(machines: Sequence[_Machine]) -> Iterator[str]:
    for machine in machines:
        found, entry = machine.run.environment, machine.entry
        parts = [found.cpu.model, f"{found.cpu.usable_cores} cores", *(gpu.name or "a GPU" for gpu in found.gpus)]
        parts += [] if entry.cost is None else [f"{entry.cost:g} an hour"]
        parts += [] if entry.watts is None else [f"{entry.watts:g} W"]
        yield f"{machine.name}: {', '.join(parts)}; {found.python}; {summary.tally(machine.run.cells)}"
    hosts = [machine.run.environment.host for machine in machines]
    for index, machine in enumerate(machines):
        if hosts[index] in hosts[:index]:
            yield f"{machine.name} and {machines[hosts.index(hosts[index])].name} are the same host"
    seen: dict[str, list[str]] = {}
    for machine in machines:
        for title, group in machine.groups.items():
            for cell in group.cells:
                first = next((other for other in machines if other.right(title, cell.name)), machine)
                for mark in _marks(first, machine, title, cell.name):
                    seen.setdefault(mark, []).append(f"{machine.name} from {first.name}")
    for mark, whose in sorted(seen.items()):
        yield f"({mark}): {_LEGEND[mark]}: {', '.join(dict.fromkeys(whose))}{_explained(mark, machines)}"


def _explained(mark: str, machines: Sequence[_Machine]) -> str:
    """The versions that differ; where the feeds differ, the remedy."""
    if mark == "f":
        return ". Set the same seed in the specs, or run all machines with --ray"
    if mark != "s":
        return ""
    versions = {
        machine.name: {"python": machine.run.environment.python, **machine.run.environment.packages}
        for machine in machines
    }
    names = dict.fromkeys(package for packages in versions.values() for package in packages)
    differing = [
        f"{package} " + ", ".join(f"{packages.get(package, 'none')} on {name}" for name, packages in versions.items())
        for package in names
        if len({packages.get(package) for packages in versions.values()}) > 1
    ]
    return f" ({'; '.join(differing)})" if differing else ""
