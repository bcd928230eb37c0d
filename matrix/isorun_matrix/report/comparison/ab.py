"""The two sides of ``isorun matrix ab``, compared in the rounds that both have."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from rich.text import Text

from isorun_matrix.measurement.statistics import verdicts
from isorun_matrix.measurement.statistics.verdicts import Ratio
from isorun_matrix.report import remarks, summary
from isorun_matrix.report.document import Document, Table, texts
from isorun_matrix.report.formatting import NONE, number
from isorun_matrix.report.summary import Measures
from isorun_matrix.results.records import CellResult, Run
from isorun_matrix.spec.pairs import Pair

_STYLES = {"slower": "red", "faster": "green"}
_HEADERS = ("", "A, p50 ms", "B, p50 ms", "B / A", "interval", "rounds", "B is")
_NUMERIC = [False, True, True, True, True, True, False]


@dataclass(frozen=True)
class Compared:
    """A cell on both sides.

    Attributes:
        ratio: the time of B divided by that of A; ``None`` where that is not known.
        of: what was compared, such as ``p50``, or ``cpu`` (CPU time of a run) where too few rounds were undisturbed.
        faster: whether B is shown to be.
    """

    name: str
    a: CellResult
    b: CellResult
    ratio: Ratio | None = None
    of: str = "p50"
    faster: bool = False

    @property
    def worker(self) -> str | None:
        """The side that alone runs in the worker of an environment; ``None`` if both or neither do."""
        if (self.a.environment is None) == (self.b.environment is None):
            return None
        return "A" if self.b.environment is None else "B"

    @property
    def verdict(self) -> str:
        """``slower``, ``faster``, ``tied`` or ``ambiguous``; else why there is none. A side that alone runs in a worker
        is not found slower, since the round trip may be all of the difference."""
        if self.ratio is None:
            failed = [
                f"{side} is {cell.status}" for side, cell in (("A", self.a), ("B", self.b)) if cell.status != "ok"
            ]
            return ", ".join(failed) or "too few rounds"
        verdict = "faster" if self.faster else self.ratio.verdict
        return "ambiguous" if (verdict, self.worker) in (("slower", "B"), ("faster", "A")) else verdict


def compare(run: Run, pairs: Sequence[Pair], measures: Measures = summary.TIME) -> list[Compared]:
    """Compare the sides of each pair. The cells of a shape are a family."""
    cells = {cell.id: cell for cell in run.cells}
    return [
        compared
        for shape in dict.fromkeys(cells[pair.a].shape for pair in pairs)
        for compared in _at_shape(cells, [pair for pair in pairs if cells[pair.a].shape == shape], shape, measures)
    ]


def _at_shape(
    cells: Mapping[str, CellResult], pairs: Sequence[Pair], shape: str, measures: Measures
) -> Iterator[Compared]:
    measured = [cell for cell in cells.values() if cell.shape == shape]
    noise = max((group.noise or 0.0 for group in summary.groups(measured)), default=0.0)
    families = {
        of: verdicts.Family([rounds(cell) for cell in measured], 2 * len(pairs), noise if of in summary.TIME else 0.0)
        for of, rounds in measures.items()
    }
    for pair in pairs:
        a, b = cells[pair.a], cells[pair.b]
        places = measured.index(a), measured.index(b)
        for of, family in families.items() if a.status == b.status == "ok" else ():
            if summary.judges(of, a, b) and (ratio := family.ratio(*places[::-1])) is not None:
                back = family.ratio(*places)
                yield Compared(pair.id, a, b, ratio, of, back is not None and back.verdict == "slower")
                break
        else:
            yield Compared(pair.id, a, b)


def as_tables(compared: Sequence[Compared]) -> Document:
    """A line for each cell, and what qualifies them."""
    rows: dict[str, list[list[Text]]] = {}
    for cell in compared:
        figures = [NONE] * 3
        if (ratio := cell.ratio) is not None:
            ends = f"{number(ratio.interval.low)} to {number(ratio.interval.high)}"
            unit = "x CPU" if cell.of == "cpu" else "x"
            figures = [f"{number(ratio.ratio)} {unit}", ends, str(ratio.rounds)]
        model, shape, name = cell.name.split("/", 2)
        medians = (number(summary.median(side)) for side in (cell.a, cell.b))
        rows.setdefault(f"{model}, {shape}", []).extend(texts([[name, *medians, *figures, cell.verdict]], _STYLES))
    notes = [
        f"{side} alone runs in an environment: its times include the round trip to a worker, so it is not found "
        "slower. Set `environment` in the backends of the other side, too."
        for side in ("A", "B")
        if any(cell.worker == side for cell in compared)
    ]
    groups = summary.groups(side for cell in compared for side in (cell.a, cell.b))
    notes += [f"{group.title}: {note}" for group in groups for note in remarks.disturbed(group.cells)]
    return Document("Sides compared", [], [Table(_HEADERS, _NUMERIC, rows)], notes)


def regressions(compared: Sequence[Compared], percent: float) -> list[str]:
    """The cells that are not ok in B alone, or slower by more than ``percent``. What A cannot run is no difference."""
    lines = []
    for cell in compared:
        if cell.a.result is not None and cell.b.status not in ("ok", cell.a.status):
            lines.append(f"{cell.name}: {cell.b.status}: {cell.b.reason}")
        elif cell.verdict == "slower" and cell.ratio is not None and cell.ratio.ratio > 1 + percent / 100:
            lines.append(f"{cell.name}: B takes {cell.ratio.ratio:.2f} x as long as A")
    return lines
