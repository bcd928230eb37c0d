"""Compare runs: which cells became faster or slower, which are no longer correct, and what may explain it.

Every run is compared with the first. Cells are matched by id. Models are compared by fingerprint, so that a change of
the model is not mistaken for one of the machine.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from isorun.errors import SpecError
from isorun_matrix.measurement.machine import Environment
from isorun_matrix.report.formatting import shortened
from isorun_matrix.report.summary import disturbed, median, median_interval
from isorun_matrix.results.records import SCHEMA, CellId, CellResult, Run, plain

_PROCESSES = 1.05  # two processes of one cell may differ by this ratio; an interval is of one process
_MOMENTARY = ("load_average", "used_mib", "clock_mhz", "throttled_by")  # never the same in two runs
_SPEC = ("masks", "feeds", "seed", "reference", "warmup", "repetitions", "seconds")
_BY = {"shapes": "name", "backends": "label", "gpus": "name"}  # lists whose items have a unique name


@dataclass(frozen=True)
class Change:
    """How the median of a cell differs from the first run's.

    Attributes:
        p50: the ratio to the first run's.
        interval: the minimum and maximum ratio that the two intervals allow.
        verdict: ``disturbed`` if either cell was; ``slower`` or ``faster`` if the intervals do not overlap and the
            medians differ by more than two processes of one cell may; else ``same``.
    """

    p50: float
    interval: tuple[float, float]
    verdict: str


@dataclass(frozen=True)
class ComparedRun:
    """A run, and its differences from the first: ``{name: (value there, value here)}``."""

    folder: str
    created: str
    environment: Environment
    differences: Mapping[str, tuple[Any, Any]]


@dataclass(frozen=True)
class ComparedCell:
    """A cell in every run.

    Attributes:
        cell: identifies it.
        results: for each run the result; ``None`` where the run has no such cell.
        changes: for each run the change from the first; ``None`` where either was not measured or is not correct.
    """

    cell: CellId
    results: Sequence[CellResult | None]
    changes: Sequence[Change | None]

    def verdict(self, number: int) -> str:
        """What became of the cell in a run (counted from 0)."""
        result, change = self.results[number], self.changes[number]
        return change.verdict if change else "missing" if result is None else str(result.status)


@dataclass(frozen=True)
class Comparison:
    """Runs compared with the first."""

    runs: Sequence[ComparedRun]
    cells: Sequence[ComparedCell]

    def as_document(self) -> dict[str, Any]:
        """The comparison as ``compare --format json`` prints it."""
        return {
            "schema": SCHEMA,
            "runs": [plain(run) for run in self.runs],
            "cells": [
                {name: getattr(cell.cell, name) for name in ("id", "model", "shape", "label", "precision")}
                | {
                    "runs": [
                        result and {**result.as_document(), "change": change and plain(change)}
                        for result, change in zip(cell.results, cell.changes, strict=True)
                    ]
                }
                for cell in self.cells
            ],
        }


def compare(runs: Sequence[Run]) -> Comparison:
    """Compare two or more runs with the first.

    Raises:
        SpecError: a run has no cell in common with the first.
    """
    first, *others = runs
    known = {cell.id for cell in first.cells}
    for other in others:
        if known.isdisjoint(cell.id for cell in other.cells):
            raise SpecError(
                f"{other.folder} has no cell in common with {first.folder}. Cells are matched by model/shape/backend/"
                f"precision: expected {_ids(first)}, got {_ids(other)}."
            )
    settings = [dict(_settings(run)) for run in runs]
    return Comparison(
        [
            ComparedRun(run.folder, run.created, run.environment, _differences(settings[0], own))
            for run, own in zip(runs, settings, strict=True)
        ],
        list(_cells(runs)),
    )


def regressions(comparison: Comparison, percent: float) -> list[tuple[str, int, str]]:
    """The cells that are ok in the first run and got worse: id, number of the run (from 0), and how.

    Args:
        comparison: of two or more runs.
        percent: how much a p50 may grow. Above that, the cell got worse if the intervals do not overlap.
    """
    found = []
    for cell in comparison.cells:
        if (first := cell.results[0]) is None or first.status != "ok":
            continue
        for number, (result, change) in enumerate(zip(cell.results, cell.changes, strict=True)):
            if result is None or result.status != "ok":
                found.append((cell.cell.id, number, f"was ok, is {result.status if result else 'missing'}"))
            elif change and change.interval[0] > 1 and change.p50 > 1 + percent / 100:
                doubt = "; disturbed: measure again" if change.verdict == "disturbed" else ""
                found.append((cell.cell.id, number, f"p50 is {change.p50:.2f} x that of run 1{doubt}"))
    return found


def _cells(runs: Sequence[Run]) -> Iterator[ComparedCell]:
    by_id = [{cell.id: cell for cell in run.cells} for run in runs]
    for name in dict.fromkeys(name for cells in by_id for name in cells):
        results = [cells.get(name) for cells in by_id]
        known = next(result for result in results if result is not None)
        yield ComparedCell(known, results, [None, *(_change(results[0], result) for result in results[1:])])


def _change(first: CellResult | None, cell: CellResult | None) -> Change | None:
    if first is None or cell is None or not (first.status == cell.status == "ok"):
        return None
    before, now, interval_before, interval = median(first), median(cell), median_interval(first), median_interval(cell)
    if before is None or now is None or interval_before is None or interval is None:
        return None
    ratio, lowest, highest = now / before, interval[0] / interval_before[1], interval[1] / interval_before[0]
    verdict = "same"
    if disturbed(first) or disturbed(cell):
        verdict = "disturbed"
    elif lowest > 1 and ratio > _PROCESSES:
        verdict = "slower"
    elif highest < 1 and ratio < 1 / _PROCESSES:
        verdict = "faster"
    return Change(ratio, (lowest, highest), verdict)


def _settings(run: Run) -> Iterator[tuple[str, Any]]:
    """What may explain other figures: the machine, its software, the feeds, and how it was measured."""
    spec = run.spec.model_dump(mode="json")
    yield from _flat({name: spec.get(name) for name in _SPEC})
    # The fingerprint tells whether a model is the same, wherever its file is.
    models = {name: {**model, "path": None, "checkpoint": None} for name, model in spec["models"].items()}
    yield from _flat(models, "models")
    for name in ("shapes", "backends"):
        yield from _flat(spec[name], name)
    for cell in run.cells:
        if cell.result is not None:
            yield f"models.{cell.model}.fingerprint", cell.result.provenance.fingerprint
    yield from _flat(plain(run.environment))


def _flat(value: Any, place: str = "") -> Iterator[tuple[str, Any]]:
    """Nested data as places and plain values."""
    kind = place.rpartition(".")[2]
    if kind in _MOMENTARY:
        return
    name = _BY.get(kind)
    if isinstance(value, list) and value and all(isinstance(item, Mapping) and name in item for item in value):
        value = {item[name]: item for item in value}
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _flat(item, f"{place}.{key}".removeprefix("."))
    else:
        yield place, value


def _differences(first: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Settings that both have with different values, and packages that only one has."""
    names = [name for name in first if name in other or ".packages." in f".{name}"]
    names += [name for name in other if name not in first and ".packages." in f".{name}"]
    return {name: (first.get(name), other.get(name)) for name in names if first.get(name) != other.get(name)}


def _ids(run: Run) -> str:
    return shortened([cell.id for cell in run.cells])
