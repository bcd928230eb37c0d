"""Several machines side by side: machines as columns, the winner on each and overall, and what differs between them.

Rounds of two machines are not paired, so machines are compared as two runs are.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from rich.text import Text

from isorun_matrix.measurement.statistics import verdicts
from isorun_matrix.report import summary
from isorun_matrix.report.document import Document, Table
from isorun_matrix.report.formatting import NONE, number
from isorun_matrix.report.machines import means, notes
from isorun_matrix.report.machines.side_by_side import Block, Machine, Value, differences, marks
from isorun_matrix.results.machines import MachineRuns
from isorun_matrix.results.records import CellResult
from isorun_matrix.text import printable


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

    def as_tables(self) -> Document:
        """The overview in the terminal and in Markdown; the cells that lead on a machine are emphasized."""
        numeric = [False, *(True for _ in self.machines)]
        tables = []
        for blocks in (self.figures, self.means):
            rows = {
                f"{block.title}: {block.figure}": [
                    [
                        Text(printable(name)),
                        *(Text(value.text, "bold green" if value.leads else "") for value in values),
                    ]
                    for name, values in block.rows.items()
                ]
                for block in blocks
            }
            tables += [Table(["", *self.machines], numeric, rows)] if rows else []
        return Document("Machines compared", self.conclusions, tables, self.notes)

    def as_csv(self) -> str:
        """The same as comma-separated values, with a column for each machine."""
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(["cells", "figure", "cell", *self.machines])
        for block in self.blocks:
            for name, values in block.rows.items():
                writer.writerow([block.title, block.figure, name, *(value.number for value in values)])
        return out.getvalue()


def overview(runs: MachineRuns) -> Overview:
    """Compare the machines of a run."""
    machines = [Machine(name, run, runs.feeds[name]) for name, run in runs.runs.items()]
    titles = list(dict.fromkeys(title for machine in machines for title in machine.groups))
    figures = [block for title in titles for block in _blocks(machines, title)]
    by_title = means.of(machines, titles) if len(titles) > 1 else {}
    conclusions = [line for title in titles for line in _conclusions(machines, title)]
    conclusions += means.best(machines, by_title, titles)
    return Overview(
        [*runs.runs],
        conclusions,
        figures,
        [*means.blocks(machines, by_title, len(titles))],
        [*notes.notes(machines)],
    )


def _blocks(machines: Sequence[Machine], title: str) -> Iterator[Block]:
    cells = [cell for machine in machines if title in machine.groups for cell in machine.groups[title].cells]
    names = list(dict.fromkeys(cell.name for cell in cells))
    scenarios = list(dict.fromkeys(load.name for cell in cells for load in cell.loads))
    figures: list[tuple[str, Callable[[Machine, CellResult], float | None]]] = [
        ("p50 ms", lambda _, cell: summary.median(cell)),
        *((f"{name}, requests/s", partial(_rate_in, name)) for name in scenarios),
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
                    rows["noise"] = [Value(noise, NONE if noise is None else f"{noise:.1%}") for noise in noises]
            yield Block(title, figure, rows)


def _value(
    machine: Machine,
    title: str,
    name: str,
    of: Callable[[Machine, CellResult], float | None],
    machines: Sequence[Machine],
) -> Value:
    cell = machine.cell(title, name)
    if cell is None:
        return Value(None, NONE)
    figure = of(machine, cell)
    if cell.status != "ok" or figure is None:
        return Value(None, NONE if cell.status == "ok" else str(cell.status))
    first = next(candidate for candidate in machines if candidate.correct_cell(title, name) is not None)
    letters = marks(first, machine, title, name)
    return Value(figure, number(figure) + (f" ({letters})" if letters else ""), machine.groups[title].leads(cell))


def _rate_in(scenario: str, _: Machine, cell: CellResult) -> float | None:
    figures = next((load.result for load in cell.loads if load.name == scenario), None)
    return None if figures is None else figures.requests_per_s


def _rate(cell: CellResult) -> float | None:
    """Requests a second: within the bound of the first ``server`` scenario, else of one request after another; ``None``
    if that scenario has no result, as another one has another bound."""
    served = next((load for load in cell.loads if load.load.get("scenario") == "server"), None)
    if served is not None:
        return None if served.result is None else served.result.requests_per_s or None
    return None if cell.result is None else cell.result.throughput.requests_per_s


def _cost(machine: Machine, cell: CellResult) -> float | None:
    cost, rate = machine.entry.cost, _rate(cell)
    return None if cost is None or rate is None else cost / 3600 / rate * 1e6


def _energy(machine: Machine, cell: CellResult) -> float | None:
    """By the counters of the machine; else by the declared power and the rate."""
    if cell.result is not None and cell.result.energy is not None:
        return cell.result.energy.joules
    watts, rate = machine.entry.watts, _rate(cell)
    return None if watts is None or rate is None else watts / rate


def _conclusions(machines: Sequence[Machine], title: str) -> Iterator[str]:
    """The winner on each machine, and overall."""
    ranked: list[tuple[float, str, summary.Group]] = []
    apart: list[str] = []
    first: tuple[Machine, CellResult] | None = None
    for machine in machines:
        if (group := machine.groups.get(title)) is not None:
            yield f"{title} on {machine.name}: {group.conclusion}"
            if group.fastest is not None and (p50 := summary.median(group.fastest)) is not None:
                first = first or (machine, group.fastest)
                if {*"mf"} & {*differences(*first, machine, group.fastest)}:  # other work
                    apart.append(machine.name)
                else:
                    ranked.append((p50, machine.name, group))
    if apart and first:
        why = f"since the model or the feeds differ from {first[0].name}"
        yield f"{title} overall: {', '.join(apart)} not ranked, {why}"
    if len(ranked) < 2:
        return
    ranked.sort(key=lambda entry: entry[:2])
    best, *others = ((name, group, summary.calm_rounds(group.fastest)) for _, name, group in ranked if group.fastest)
    name, group, calm = best
    leader = f"{title} overall: {group.fastest and group.fastest.name} on {name}"
    sessions = verdicts.Sessions()
    changes = [
        verdicts.change(calm, rounds, "p50", sessions, len(others), group.noise or 0.0, rival.noise or 0.0)
        for _, rival, rounds in others
    ]
    if any(change.needed is None for change in changes):
        yield f"{leader} has the lowest median of these, but there are too few undisturbed rounds for a verdict."
        return
    unclear = [machine for (machine, *_), change in zip(others, changes, strict=True) if change.verdict != "slower"]
    if unclear:
        names = ", ".join(unclear)
        yield f"{leader} has the lowest median of these, but these runs cannot tell it from the fastest on {names}."
    else:
        yield f"{leader} is the fastest: the fastest on {others[0][0]} takes {number(changes[0].ratio)} x as long."
