"""The machines of a report: their cells, and values side by side."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from isorun_matrix.report import summary
from isorun_matrix.results.machines import MachineRuns
from isorun_matrix.results.records import CellResult, RecordedMachine, Run


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
class Machine:
    """A machine: its run, its entry in the spec, and the groups of its cells."""

    name: str
    run: Run
    feeds: Mapping[str, str]
    groups: Mapping[str, summary.Group] = field(default_factory=dict)

    @classmethod
    def of(cls, runs: MachineRuns, name: str) -> Machine:
        groups = {group.title: group for group in summary.groups(runs.runs[name].cells)}
        return cls(name, runs.runs[name], runs.feeds[name], groups)

    @property
    def entry(self) -> RecordedMachine:
        return self.run.spec.machines.get(self.name, RecordedMachine())

    def cell(self, title: str, name: str) -> CellResult | None:
        cells = self.groups[title].cells if title in self.groups else ()
        return next((cell for cell in cells if cell.name == name), None)

    def correct_cell(self, title: str, name: str) -> CellResult | None:
        """The same, if its outputs are correct."""
        cell = self.cell(title, name)
        return cell if cell is not None and cell.status == "ok" and cell.result is not None else None


def marks(first: Machine, other: Machine, title: str, name: str) -> Iterator[str]:
    """What differs between a cell on two machines, as letters of the legend."""
    cell, own = first.correct_cell(title, name), other.correct_cell(title, name)
    if cell is None or own is None or cell.result is None or own.result is None:
        return
    ran, own_provenance = cell.result.provenance, own.result.provenance
    if ran.fingerprint != own_provenance.fingerprint:
        yield "m"
    if first.feeds.get(cell.id) != other.feeds.get(own.id):
        yield "f"
    if (ran.versions, first.run.environment.python) != (own_provenance.versions, other.run.environment.python):
        yield "s"
