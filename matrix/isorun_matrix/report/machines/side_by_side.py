"""The machines of a report: their cells, and values side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from isorun_matrix.report import summary
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
    """A machine, its run, and the digests of the feeds of its cells."""

    name: str
    run: Run
    feeds: Mapping[str, str]

    @cached_property
    def groups(self) -> Mapping[str, summary.Group]:
        return {group.title: group for group in summary.groups(self.run.cells)}

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


def differences(first: Machine, cell: CellResult, machine: Machine, own: CellResult) -> str:
    """What differs between two cells of a model and shape, as letters of the legend: ``m`` where the models do, ``f``
    where the feeds do, ``s`` where the software does, ``o`` where the settings of the backend do."""
    if cell.result is None or own.result is None:
        return ""
    base, changed = cell.result.provenance, own.result.provenance
    feeds = first.feeds.get(cell.id), machine.feeds.get(own.id)
    differ = {
        "m": base.fingerprint != changed.fingerprint,
        "f": None not in feeds and feeds[0] != feeds[1],  # the feeds of a node that was lost may be unknown
        "o": (cell.device, cell.threads, cell.options) != (own.device, own.threads, own.options),
        "s": (base.versions, first.run.environment.python) != (changed.versions, machine.run.environment.python),
    }
    return "".join(letter for letter, differs in differ.items() if differs)


def marks(first: Machine, machine: Machine, title: str, name: str) -> str:
    """What differs between a cell on two machines, if it is correct on both."""
    cell, own = first.correct_cell(title, name), machine.correct_cell(title, name)
    return "" if cell is None or own is None else differences(first, cell, machine, own)
