"""Compare runs: which cells became faster or slower, which are no longer correct, and what may explain it.

Every run is compared with the first. Cells are matched by id. Models are compared by fingerprint, so that a change of
the model is not mistaken for one of the machine. A run is one session: how much sessions differ is measured from three
or more runs of the same (the history, or else those without any difference in settings), and assumed where there are
fewer.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.text import Text

from isorun.errors import SpecError
from isorun_matrix.measurement.statistics import verdicts
from isorun_matrix.measurement.statistics.verdicts import Change, Medians, Sessions
from isorun_matrix.report import summary
from isorun_matrix.report.columns import Column, columns
from isorun_matrix.report.document import Document, Table, texts
from isorun_matrix.report.formatting import NONE, counts, shortened
from isorun_matrix.results.records import SCHEMA, CellId, CellResult, Run, plain

_MOMENTARY = ("load_average", "used_mib", "clock_mhz", "throttled_by")  # never the same in two runs
_SPEC = (
    *("masks", "feeds", "reference", "rounds", "common_rounds", "warmup", "repetitions", "seconds", "turns"),
    *("time_limit", "tolerances", "quality", "threads", "device"),
)
_VALUE = 48  # maximum characters of a value
_STYLES = {"slower": "red", "faster": "green", "too few rounds": "yellow"}
_BY = {"shapes": "name", "backends": "label", "gpus": "name"}  # lists whose items have a unique name
_ADDED = {"packages", "variables", "gpus", "options", "dims", "lengths", "tolerances", "quality"}
"""Settings of something that both runs have, of which one run alone may have a member."""

Place = tuple[str, ...]


@dataclass(frozen=True)
class ComparedCell:
    """A cell in every run.

    Attributes:
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
    """Runs compared with the first, how much sessions differ, and the ``differences`` of each run from the first:
    ``{name: (value there, value here)}``."""

    runs: Sequence[Run]
    differences: Sequence[Mapping[str, tuple[Any, Any]]]
    cells: Sequence[ComparedCell]
    sessions: Sessions

    def as_document(self) -> dict[str, Any]:
        """The comparison as ``compare --format json`` prints it."""
        return {
            "schema": SCHEMA,
            "runs": [
                {"folder": run.folder, "created": run.created, "environment": plain(run.environment)}
                | {"differences": differences}
                for run, differences in zip(self.runs, self.differences, strict=True)
            ],
            "sessions": plain(self.sessions),
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

    def as_tables(self) -> Document:
        """The runs, a block of cells for each model and shape, and how many changed."""
        results = [result for cell in self.cells for result in cell.results if result is not None]
        shown = columns("compare", results)[:-1]  # the verdict replaces the status
        headers = [*(column.header for column in shown[:2]), "run", *(column.header for column in shown[2:])]
        numeric = [False, False, False, *(column.numeric for column in shown[2:])]
        rows: dict[str, list[list[Text]]] = {}
        for cell in self.cells:
            block = rows.setdefault(f"{cell.cell.model}, {cell.cell.shape}", [])
            block += texts((_row(cell, number, shown[2:]) for number in range(len(self.runs))), _STYLES)
        table = Table([*headers, "time", "status"], [*numeric, True, False], rows)
        return Document("Runs compared", [*_runs(self)], [table], [*_tallies(self)])


def compare(runs: Sequence[Run], history: Sequence[Run] = ()) -> Comparison:
    """Compare two or more runs with the first.

    Args:
        runs: the first one, and those that are compared with it; all distinct.
        history: earlier runs of what the first one measured.

    Raises:
        SpecError: a run has no cell in common with the first.
    """
    first, *others = runs
    known = {cell.id for cell in first.cells}
    for second in (*others, *history):
        if known.isdisjoint(cell.id for cell in second.cells):
            raise SpecError(
                f"{second.folder} has no cell in common with {first.folder}. Cells are matched by model/shape/backend/"
                f"precision: expected {shortened([*first.by_id])}, got {shortened([*second.by_id])}."
            )
    settings = [dict(_settings(run)) for run in runs]
    by_id = [run.by_id for run in runs]
    noise = [{(group.model, group.shape): group.noise or 0.0 for group in summary.groups(run.cells)} for run in runs]
    differences = [_differences(settings[0], own) for own in settings]
    same = [run for run, own in zip(runs, differences, strict=True) if not own]
    alike = [first, *_of_the_same(first, history)] if history else same
    sessions = Sessions.of(
        [{cell.id: p50 for cell in run.cells if (p50 := summary.calm_median(cell)) is not None} for run in alike]
    )
    changes = [
        {},
        *(_changes(by_id[0], cells, sessions, noise[0], own) for cells, own in zip(by_id[1:], noise[1:], strict=True)),
    ]
    return Comparison(
        runs,
        differences,
        [
            ComparedCell(
                next(cells[name] for cells in by_id if name in cells),
                [cells.get(name) for cells in by_id],
                [by_name.get(name) for by_name in changes],
            )
            for name in dict.fromkeys(name for cells in by_id for name in cells)
        ],
        sessions,
    )


def _of_the_same(first: Run, history: Sequence[Run]) -> Iterator[Run]:
    """Runs with those of their cells that measured the same as the first. ``SpecError`` if a run has none."""
    subjects = {cell.id: summary.subject(first, cell) for cell in first.cells}
    for run in history:
        cells = [cell for cell in run.cells if summary.subject(run, cell) in (None, subjects.get(cell.id))]
        if all(cell.result is None for cell in cells):
            raise SpecError(
                f"{run.folder} measured no cell of {first.folder} with the same model, shape, backend, options, "
                "number of threads and device. Remove it from --history."
            )
        yield run.model_copy(update={"cells": cells})


def regressions(comparison: Comparison, percent: float) -> list[tuple[str, int, str]]:
    """The cells that are ok in the first run and got worse: id, number of the run (from 0), and how.

    Args:
        percent: how much the time may grow. Above that, the cell got worse if its verdict is ``slower``.
    """
    lines = []
    for cell in comparison.cells:
        if (first := cell.results[0]) is None or first.status != "ok":
            continue
        for number, (result, change) in enumerate(zip(cell.results, cell.changes, strict=True)):
            if result is None or result.status != "ok":
                lines.append((cell.cell.id, number, f"was ok, is {result.status if result else 'missing'}"))
            elif change and change.verdict == "slower" and (change.ratio or 0) > 1 + percent / 100:
                what = "p50" if change.of == "p50" else "CPU time of a run"
                chance = f"chance and sessions explain up to {change.needed:.2f} x"
                lines.append((cell.cell.id, number, f"{what} is {change.ratio:.2f} x that of run 1; {chance}"))
    return lines


def _changes(
    first: Mapping[str, CellResult],
    second: Mapping[str, CellResult],
    sessions: Sessions,
    *noises: Mapping[tuple[str, str], float],
) -> dict[str, Change]:
    """The changes of all cells that are correct in both runs."""
    names = [name for name in first if name in second and first[name].status == second[name].status == "ok"]
    values = {name: _values(first[name], second[name]) for name in names}
    return {
        name: verdicts.change(
            before,
            now,
            of,
            sessions,
            len(names),
            *(noise.get((first[name].model, first[name].shape), 0.0) for noise in noises),
        )
        for name, (before, now, of) in values.items()
    }


def _values(first: CellResult, second: CellResult) -> tuple[Medians, Medians, str]:
    """The value in each round of both runs, and what it is.

    Medians of undisturbed rounds; CPU time of all rounds where either run has too few of those.
    """
    for of, rounds in summary.TIME.items():
        values = rounds(first), rounds(second)
        if min(map(len, values)) >= verdicts.NEEDED and summary.judges(of, first, second):
            return *values, of
    return summary.calm_rounds(first), summary.calm_rounds(second), "p50"


def _settings(run: Run) -> Iterator[tuple[Place, Any]]:
    """What may explain other figures: the machine, its software, the feeds, and how it was measured."""
    spec = run.spec.model_dump(mode="json")
    yield from _flat({name: spec.get(name) for name in _SPEC})
    # The fingerprint tells whether a model is the same, wherever its file is.
    models = {name: {**model, "path": None, "checkpoint": None} for name, model in spec["models"].items()}
    yield from _flat(models, ("models",))
    for name in ("shapes", "backends"):
        yield from _flat(spec[name], (name,))
    for cell in run.cells:
        if cell.result is not None:
            yield ("models", cell.model, "fingerprint"), cell.result.provenance.fingerprint
    yield from _flat(plain(run.environment))


def _flat(value: Any, place: Place = ()) -> Iterator[tuple[Place, Any]]:
    """Nested data as places and plain values."""
    kind = place[-1] if place else ""
    if kind in _MOMENTARY:
        return
    name = _BY.get(kind)
    if name and isinstance(value, list) and all(isinstance(item, Mapping) and name in item for item in value):
        value = {item[name]: item for item in value}
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _flat(item, (*place, key))
    else:
        yield place, value


def _differences(first: Mapping[Place, Any], second: Mapping[Place, Any]) -> dict[str, tuple[Any, Any]]:
    """Settings that both have with different values, and members of :data:`_ADDED` that only one has."""
    known = [{place[:end] for place in settings for end in range(len(place))} for settings in (first, second)]
    parts = known[0] & known[1]  # what both have, such as a backend or a shape
    return {
        ".".join(place): (first.get(place), second.get(place))
        for place in {**first, **second}
        if first.get(place) != second.get(place)
        and (
            (place in first and place in second)
            or any(kind in _ADDED and place[:index] in parts for index, kind in enumerate(place))
        )
    }


def _tallies(comparison: Comparison) -> Iterator[str]:
    """For each run but the first, how many cells became faster, slower, or something else."""
    for number in range(1, len(comparison.runs)):
        words = Counter(_change(cell, number) for cell in comparison.cells)
        yield f"run {number + 1} compared with run 1: {counts(words)}"


def _change(cell: ComparedCell, number: int) -> str:
    first, result = cell.results[0], cell.results[number]
    if result is None or first is None:
        return "new" if result else "missing"
    return cell.verdict(number) + (f" (was {first.status})" if first.status != result.status else "")


def _runs(comparison: Comparison) -> Iterator[str]:
    for number, (run, differences) in enumerate(zip(comparison.runs, comparison.differences, strict=True), start=1):
        cpu = run.environment.cpu
        gpus = "".join(f", {gpu.name}" for gpu in run.environment.gpus)
        yield f"run {number}: {run.folder}, {cpu.model}, {cpu.usable_cores} cores{gpus}, {run.created}"
        for name, (first, own) in differences.items():
            yield f"  {name}: {_shown(first)} in run 1, {_shown(own)} in run {number}"
    yield f"sessions: {comparison.sessions}"
    if not comparison.sessions.runs:
        yield (
            "  Give earlier runs with --history (three or more in all), or measure both in one session with "
            "`isorun matrix ab`."
        )


def _row(cell: ComparedCell, number: int, shown: Sequence[Column]) -> list[str]:
    result, change = cell.results[number], cell.changes[number]
    named = ["", ""] if number else [cell.cell.label, cell.cell.precision]
    figures = [NONE if result is None else column.text(result) for column in shown]
    return [*named, str(number + 1), *figures, _ratio(change), cell.verdict(number)]


def _ratio(change: Change | None) -> str:
    if change is None or change.ratio is None:
        return ""
    return f"{change.ratio:.2f} x" + (" CPU" if change.of == "cpu" else "")


def _shown(value: Any) -> str:
    if value is None:
        return "nothing"
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= _VALUE else f"{text[: _VALUE - 3]}..."
