"""What every report says about a run: cells by model and shape, the fastest correct one, and remarks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from isorun_matrix.report.formatting import counts, number, shortened
from isorun_matrix.results.records import LACKING, CellResult

_DISTURBED = 0.05  # a share of waiting from which a cell counts as disturbed
_UNSTEADY = 1.25  # a ratio of the ends of a median's interval above which a cell counts as unsteady


@dataclass(frozen=True)
class Group:
    """The cells of one model at one shape.

    Attributes:
        model, shape: their names in the spec.
        cells: in the spec's order.
        fastest: the correct cell with the lowest median latency.
        tied: other correct cells whose median intervals overlap that of the fastest.
    """

    model: str
    shape: str
    cells: tuple[CellResult, ...]
    fastest: CellResult | None
    tied: tuple[CellResult, ...]

    @property
    def title(self) -> str:
        """The model and the shape."""
        return f"{self.model}, {self.shape}"

    def leads(self, cell: CellResult) -> bool:
        """Whether a cell is the fastest or tied with it."""
        return cell is self.fastest or cell in self.tied

    def status(self, cell: CellResult) -> str:
        """The status of a cell, and whether it is the fastest."""
        if self.leads(cell):
            return "ok, tied" if self.tied else "ok, fastest"
        return str(cell.status)


def groups(cells: Iterable[CellResult]) -> list[Group]:
    """Cells by model and shape, in the spec's order."""
    found: dict[tuple[str, str], list[CellResult]] = {}
    for cell in cells:
        found.setdefault((cell.model, cell.shape), []).append(cell)
    return [Group(model, shape, tuple(cells), *_fastest(cells)) for (model, shape), cells in found.items()]


def _fastest(cells: Sequence[CellResult]) -> tuple[CellResult | None, tuple[CellResult, ...]]:
    correct = sorted(
        (
            (p50, interval, cell)
            for cell in cells
            if cell.status == "ok"
            and (p50 := median(cell)) is not None
            and (interval := median_interval(cell)) is not None
        ),
        key=lambda item: item[0],
    )
    if not correct:
        return None, ()
    (_, (_, maximum), fastest), *others = correct
    return fastest, tuple(cell for _, (minimum, _), cell in others if minimum <= maximum)


def median(cell: CellResult) -> float | None:
    """The median latency of a cell in milliseconds; ``None`` if it was not measured, or with too few runs."""
    return None if cell.result is None else cell.result.latency_ms.p50


def median_interval(cell: CellResult) -> tuple[float, float] | None:
    """The interval of the median; ``None`` where there is no median."""
    return None if cell.result is None else cell.result.latency_ms.p50_interval


def disturbed(cell: CellResult) -> bool:
    """Whether the threads of a cell often had no core while it was measured."""
    return cell.result is not None and (cell.result.waited or 0) >= _DISTURBED


def explanation(cell: CellResult) -> str | None:
    """Why a cell is not ok, and the remedy, in a line; ``None`` if there is nothing to explain."""
    if cell.status in ("ok", "pending"):
        return None
    text = " ".join(str(cell.reason).split())
    return f"{text}. {cell.remedy}" if cell.remedy else text


def explanations(cells: Iterable[CellResult]) -> dict[str, list[CellResult]]:
    """Each explanation once, with all its cells."""
    found: dict[str, list[CellResult]] = {}
    for cell in cells:
        if (text := explanation(cell)) is not None:
            found.setdefault(text, []).append(cell)
    return found


def names(cells: Iterable[CellResult]) -> str:
    """The first few cells of a group."""
    return shortened([cell.name for cell in cells])


def tally(cells: Iterable[CellResult]) -> str:
    """How many cells have each status."""
    return counts(Counter(cell.status for cell in cells))


def kind(cell: CellResult) -> str:
    """``ok``; ``lack``, for a cell that cannot run here or has not run; or ``bad``."""
    return "ok" if cell.status == "ok" else "lack" if cell.status in (*LACKING, "pending") else "bad"


def notes(group: Group) -> list[str]:
    """Remarks on the feeds, on time on the device, on cells that are kept, and on doubtful figures."""
    measured = [(cell, cell.result) for cell in group.cells if cell.result is not None]
    found = [note for _, result in measured for note in result.notes]
    for cell, result in measured:
        if device := result.device_ms:
            times = f"p50 {number(device.p50)} ms, p99 {number(device.p99)} ms"
            found.append(f"{cell.name}: {times} on the device alone, by its own events")
    found += [f"{cell.name}: kept from an earlier run; {cell.kept}" for cell in group.cells if cell.kept]
    return [*dict.fromkeys(found), *_doubts(group)]


def _doubts(group: Group) -> Iterator[str]:
    """Doubtful figures, the worst cells first."""
    waiting = {cell.name: cell.result.waited or 0 for cell in group.cells if cell.result and disturbed(cell)}
    if waiting:
        shown = shortened(
            [f"{name} ({waiting[name]:.0%})" for name in sorted(waiting, key=lambda name: -waiting[name])]
        )
        yield (
            f"disturbed: threads waited for a core for a share of the time: {shown}. Other programs ran, or there are "
            "more threads than cores. Measure again."
        )
    intervals = {cell.name: interval for cell in group.cells if (interval := median_interval(cell))}
    unsteady = {name: ends for name, ends in intervals.items() if ends[1] / ends[0] > _UNSTEADY}
    if unsteady:
        ordered = sorted(unsteady.items(), key=lambda item: -item[1][1] / item[1][0])
        shown = shortened([f"{name} ({number(low)} to {number(high)} ms)" for name, (low, high) in ordered])
        yield f"unsteady: medians of sixths of the runs differ: {shown}"
