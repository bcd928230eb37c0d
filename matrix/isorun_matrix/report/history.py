"""A cell over several runs: its p50 in each, a plot of characters, and where it changed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from fnmatch import fnmatchcase

from isorun.errors import SpecError
from isorun_matrix.measurement.statistics.change_points import ChangePoint, change_points
from isorun_matrix.report import summary
from isorun_matrix.report.document import Document, Table, texts
from isorun_matrix.report.formatting import number, shortened
from isorun_matrix.results.records import CellResult, Run

_OTHER = "with another processor, model, shape, backend, options, number of threads or device"
_DISTURBED = "disturbed in every round"
_BARS = "▁▂▃▄▅▆▇█"


def render(runs: Sequence[Run], patterns: Sequence[str], width: int) -> Document:
    """A line for each cell, with a column for each run, the oldest first.

    Args:
        runs: in any order.
        patterns: shell wildcards; a cell is shown if its id matches one.
        width: of the output, in characters; where the runs do not fit, the oldest ones are in the plot only.

    Raises:
        SpecError: no cell matches.
    """
    ordered = sorted(runs, key=_measured_at)
    names = _names(ordered, patterns)
    left = width - min(32, max(map(len, names))) - len(runs) - 4
    shown = range(max(0, len(runs) - max(1, left // 8)), len(runs))
    rows = []
    for name in names:
        medians = [
            summary.median(cell) if (cell := run.by_id.get(name)) is not None and cell.status == "ok" else None
            for run in ordered
        ]
        rows.append([name, plot(medians), *(number(medians[index]) for index in shown)])
    headers = ["p50 ms", "", *(f"run {index + 1}" for index in shown)]
    table = Table(headers, [False, False, *(True for _ in shown)], {"": texts(rows)})
    lines = [
        f"run {index}: {run.created}, {run.folder}, {run.environment.cpu.model} ({run.environment.host})"
        for index, run in enumerate(ordered, start=1)
    ]
    # Those measured after such a run count as earlier ones, so that no change in them is ever new.
    now = datetime.now(UTC).isoformat()
    future = [str(index) for index, run in enumerate(ordered, start=1) if _measured_at(run)[0] > now]
    clocks = [f"run {', '.join(future)} is dated in the future, so its place among the runs is wrong"] if future else []
    sentences = [*_sentences(changes(ordered, patterns), ordered), *_left_out(ordered, names), *clocks]
    return Document("History", lines, [table], sentences)


def changes(runs: Sequence[Run], patterns: Sequence[str]) -> dict[str, list[ChangePoint]]:
    """Where cells changed, by their ids. Of a cell, those runs count that were correct and not disturbed, and measured
    the same as the last run: on the same processor, and the same model, shape, backend, options, number of threads and
    device.

    Args:
        runs, patterns: as for :func:`render`.

    Raises:
        SpecError: no cell matches.
    """
    ordered = sorted(runs, key=_measured_at)
    names = _names(ordered, patterns)
    medians = {name: [*map(summary.calm_median, _of_the_same(ordered, name))] for name in names}
    return {name: points for name in names if (points := change_points(medians[name], len(names)))}


def _of_the_same(ordered: Sequence[Run], name: str) -> list[CellResult | None]:
    """A cell in each run; ``None`` where it measured something else than in the last run that measured it."""
    cells = [run.by_id.get(name) for run in ordered]
    subjects = [
        None
        if cell is None or (subject := summary.subject(run, cell)) is None
        else (*subject, run.environment.cpu.model, run.environment.cpu.usable_cores)
        for run, cell in zip(ordered, cells, strict=True)
    ]
    last = next((subject for subject in reversed(subjects) if subject is not None), None)
    return [cell if subject in (None, last) else None for cell, subject in zip(cells, subjects, strict=True)]


def _measured_at(run: Run) -> tuple[str, str]:
    """When a run was measured last, as it may have been continued after others, and when it began."""
    started = (measured.started for cell in run.cells for measured in summary.rounds(cell))
    return max(started, default=run.created), run.created


def _names(ordered: Sequence[Run], patterns: Sequence[str]) -> list[str]:
    """The ids of the cells that match."""
    names = [
        name
        for name in dict.fromkeys(name for run in ordered for name in run.by_id)
        if any(fnmatchcase(name, pattern) or fnmatchcase(name, f"{pattern}/*") for pattern in patterns)
    ]
    if not names:
        raise SpecError(f"No cell matches {' or '.join(map(repr, patterns))}")
    return names


def _left_out(ordered: Sequence[Run], names: Sequence[str]) -> Iterator[str]:
    """Which runs that measured a cell do not count in its changes, and why."""
    cells_by_runs: dict[tuple[str, str], list[str]] = {}
    for name in names:
        numbers: dict[str, list[str]] = {}
        for index, (run, cell) in enumerate(zip(ordered, _of_the_same(ordered, name), strict=True), start=1):
            if cell is None and name in run.by_id:
                numbers.setdefault(_OTHER, []).append(str(index))
            elif cell is not None and cell.status == "ok" and summary.calm_median(cell) is None:
                numbers.setdefault(_DISTURBED, []).append(str(index))
        for why, runs in numbers.items():
            cells_by_runs.setdefault((", ".join(runs), why), []).append(name)
    for (left, why), names_of_cells in cells_by_runs.items():
        yield f"no changes from run {left}, {why}: {shortened(names_of_cells)}"


def _sentences(points_by_cell: Mapping[str, Sequence[ChangePoint]], ordered: Sequence[Run]) -> Iterator[str]:
    for name, points in points_by_cell.items():
        for point in points:
            new = "new: " if point.new else ""
            since = f"since run {point.run + 1} ({ordered[point.run].created[:10]})"
            yield f"{new}{name} takes {point.ratio:.2f} x as long {since}"


def plot(values: Sequence[float | None]) -> str:
    """Values as bars from 0 to the largest; a blank where there is none."""
    largest = max((value for value in values if value is not None), default=0.0)
    return "".join(
        " " if value is None else _BARS[min(len(_BARS) - 1, int(value / largest * len(_BARS)))] for value in values
    )
