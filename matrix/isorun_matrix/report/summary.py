"""What every report says about a run: cells by model and shape, the fastest correct one, and how sure that is."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from isorun_matrix.jobs import CONTROL
from isorun_matrix.measurement.figures import Round
from isorun_matrix.measurement.statistics import verdicts
from isorun_matrix.measurement.statistics.verdicts import Medians, Ratio
from isorun_matrix.report.formatting import NONE, number, shortened
from isorun_matrix.results.records import CellResult, Run

_AS_BUSY = 1.05  # cells that keep cores busy to within this ratio
_REMEDY = "More rounds or a quieter machine may decide."


@dataclass(frozen=True)
class Group:
    """The cells of one model at one shape.

    Attributes:
        model, shape: their names in the spec.
        cells: in the spec's order, without the control.
        fastest: the correct cell with the lowest median latency of those that no other one is shown to beat in common
            rounds; ``None`` if none is correct.
        ratios: for each other correct cell, by its id, how it compares with that; ``None`` where that is not known.
        noise: how far the control is from its twin, as a ratio less 1; ``None`` without a control.
        twin: the name of the cell that the control repeats; ``None`` without a control.
    """

    model: str
    shape: str
    cells: tuple[CellResult, ...]
    fastest: CellResult | None
    ratios: Mapping[str, Ratio | None]
    noise: float | None
    twin: str | None

    @property
    def title(self) -> str:
        """The model and the shape."""
        return f"{self.model}, {self.shape}"

    def verdict(self, cell: CellResult) -> str | None:
        """``fastest``, ``tied``, ``ambiguous`` or ``slower``; ``None`` where the data support none of them.

        The leader is ``fastest`` only if all others are slower, ``tied`` if it is tied with some and faster than the
        others, and else ``ambiguous``.
        """
        if cell is not self.fastest:
            ratio = self.ratios.get(cell.id)
            return None if ratio is None else ratio.verdict
        verdicts = {None if ratio is None else ratio.verdict for ratio in self.ratios.values()}
        if not verdicts or None in verdicts:
            return None
        return "ambiguous" if "ambiguous" in verdicts else "tied" if "tied" in verdicts else "fastest"

    @property
    def baseline(self) -> CellResult | None:
        """The first correct cell of the spec, to which speed-ups refer."""
        return next((cell for cell in self.cells if cell.status == "ok" and cell.result is not None), None)

    def speed_up(self, cell: CellResult) -> float | None:
        """The latency of the first correct cell, divided by that of a cell: the median of the undisturbed rounds that
        both have; without any, of all rounds that both have."""
        if self.baseline is None:
            return None
        for medians in (calm_rounds, _all_rounds):
            first, own = medians(self.baseline), medians(cell)
            if common := [math.log(first[number] / own[number]) for number in first if number in own]:
                return math.exp(statistics.median(common))
        return None

    def leads(self, cell: CellResult) -> bool:
        """Whether a cell is the fastest or tied with it."""
        return self.verdict(cell) in ("fastest", "tied")

    def status(self, cell: CellResult) -> str:
        """The status of a cell, and its verdict."""
        verdict = self.verdict(cell)
        return str(cell.status) if verdict in (None, "slower") else f"{cell.status}, {verdict}"

    @property
    def choice(self) -> str:
        """The cell to use, or those that this run does not tell apart; ``-`` if none is correct."""
        if self.fastest is None:
            return NONE
        verdict = self.verdict(self.fastest)
        equal = [] if verdict == "fastest" else self._others(verdict)
        return shortened([self.fastest.name, *(cell.name for cell in equal)], " or ", " or ")

    @property
    def certainty(self) -> str:
        """How sure :attr:`choice` is: the verdict, or why there is none."""
        if not self._measured:
            return "not measured"
        if self.fastest is None:
            return f"no {self._required}"
        if not self.ratios:
            return "the only correct one"
        return self.verdict(self.fastest) or "too few rounds"

    @property
    def runner_up(self) -> tuple[CellResult, Ratio] | None:
        """The fastest of the other cells that decide the verdict, and how it compares; ``None`` without a verdict."""
        verdict = None if self.fastest is None else self.verdict(self.fastest)
        if verdict is None:
            return None
        others = self._others("slower" if verdict == "fastest" else verdict)
        compared = ((cell, ratio) for cell in others if (ratio := self.ratios[cell.id]) is not None)
        return min(compared, key=lambda pair: pair[1].ratio)

    @property
    def conclusion(self) -> str:
        """What the group shows, in a sentence, and how sure that is; and which cells have not run."""
        if not self._measured:
            return "No cell was measured."
        pending = [cell for cell in self.cells if cell.status == "pending"]
        return self._verdict_in_words + (f" Not measured yet: {names(pending)}." if pending else "")

    @property
    def _verdict_in_words(self) -> str:
        if self.fastest is None:
            return f"No cell has {self._required}."
        leader, p50, lower = self.fastest.name, f"p50 {number(median(self.fastest))} ms", self._lower
        if lower is not None:
            p50 += f"; {lower.name} has {number(median(lower))} ms over all of its rounds"
        if not self.ratios:
            return f"{leader} is the only one with {self._required} ({p50})."
        ahead = f"{leader} {'has the lowest median' if lower is None else 'is ahead in common rounds'} ({p50}), but"
        if self.runner_up is None:
            lacking = [cell for cell in self.cells if cell.id in self.ratios and self.verdict(cell) is None]
            return (
                f"{ahead} fewer than {verdicts.NEEDED} undisturbed rounds connect it with {names(lacking)}. {_REMEDY}"
            )
        following, ratio = self.runner_up
        low, high = number(ratio.interval.low), number(ratio.interval.high)
        sure = f"{low} to {high} x, {ratio.interval.level:.0%} confidence for all pairs, {ratio.rounds} rounds"
        slower = f"the next one, {following.name}, takes {number(ratio.ratio)} x as long ({sure})"
        match self.verdict(self.fastest):
            case "fastest":
                return f"{leader} is the fastest ({p50}): {slower}."
            case "tied":
                return f"{leader} ({p50}) is tied with {names(self._others('tied'))}: within 5%; {slower}."
        rest = [cell for cell in self._others("ambiguous") if cell is not following]
        more = f"; {names(rest)} may be as fast, too" if rest else ""
        lack = "the interval includes 1" if ratio.interval.high >= 1 else "the medians of all rounds contradict that"
        if ratio.interval.low > 1:
            lack = f"chance and noise can explain up to {number(ratio.needed)} x"
        return f"{ahead} {slower}, and {lack}{more}. {_REMEDY}"

    @property
    def _measured(self) -> bool:
        return any(cell.result is not None for cell in self.cells)

    @property
    def _required(self) -> str:
        """What cells need to be compared."""
        fails = any(cell.status == "quality-failed" for cell in self.cells)
        return "correct outputs" + (" and the required quality" if fails else "")

    @property
    def _lower(self) -> CellResult | None:
        """The correct cell with the lowest median, if that is lower than the fastest one's: it has other rounds."""
        assert self.fastest is not None
        correct = [cell for cell in self.cells if cell is self.fastest or cell.id in self.ratios]
        lowest = min(correct, key=lambda cell: median(cell) or math.inf)
        return lowest if median(lowest) != median(self.fastest) else None

    def _others(self, verdict: str | None) -> list[CellResult]:
        return [cell for cell in self.cells if cell is not self.fastest and verdict and self.verdict(cell) == verdict]


def groups(cells: Iterable[CellResult]) -> list[Group]:
    """Cells by model and shape, in the spec's order."""
    by_workload: dict[tuple[str, str], list[CellResult]] = {}
    for cell in cells:
        by_workload.setdefault((cell.model, cell.shape), []).append(cell)
    return [_group(model, shape, cells) for (model, shape), cells in by_workload.items()]


def _group(model: str, shape: str, cells: Sequence[CellResult]) -> Group:
    shown = tuple(cell for cell in cells if not cell.control)
    control = next((cell for cell in cells if cell.control), None)
    noise = twin = None
    if control is not None:
        twin = next((cell for cell in shown if cell.name == control.name.replace(CONTROL, "")), None)
        noise = None if twin is None else verdicts.self_ratio(calm_rounds(twin), calm_rounds(control))
    sorted_cells = sorted(
        (p50, index)
        for index, cell in enumerate(cells)
        if cell.status == "ok" and not cell.control and (p50 := median(cell))
    )
    correct = [index for _, index in sorted_cells]
    family = verdicts.Family([calm_rounds(cell) for cell in cells], len(correct), noise or 0.0)
    # A cell that was added later can have a higher median in slower hours, and yet be faster in common rounds.
    unbeaten = (
        index
        for index in correct
        if not any((ratio := family.ratio(index, rival)) and ratio.verdict == "slower" for rival in correct)
    )
    fastest = next(unbeaten, correct[0] if correct else None)
    ratios = {rival: family.ratio(rival, fastest) for rival in correct if fastest is not None and rival != fastest}
    return Group(
        model,
        shape,
        shown,
        None if fastest is None else cells[fastest],
        {cells[index].id: ratio for index, ratio in ratios.items()},
        noise,
        None if twin is None else twin.name,
    )


def subject(run: Run, cell: CellResult) -> tuple[Any, ...] | None:
    """What a cell of a run measured, apart from the versions that ran it: cells of several runs with the same id and
    subject may be compared over time; ``None`` if it was not measured."""
    if cell.result is None:
        return None
    model = run.spec.models.get(cell.model)
    shapes = (model and model.shapes) or run.spec.shapes or ()
    shape = next((shape for shape in shapes if shape.get("name") == cell.shape), None)
    provenance = cell.result.provenance
    settings = cell.backend, cell.options, cell.result.threads, provenance.device
    return provenance.fingerprint, repr(shape), *settings


def rounds(cell: CellResult) -> Sequence[Round]:
    """The rounds of a cell; none if it was not measured."""
    return () if cell.result is None else cell.result.rounds


def _all_rounds(cell: CellResult) -> Medians:
    """The median of a cell in each round."""
    return {measured.place: measured.p50 for measured in rounds(cell)}


def calm_rounds(cell: CellResult) -> Medians:
    """The median of a cell in each undisturbed round."""
    return {measured.place: measured.p50 for measured in rounds(cell) if not measured.disturbed}


def cpu_rounds(cell: CellResult) -> Medians:
    """The CPU time of a run in each round, which other programs change little."""
    return {measured.place: measured.cpu_ms for measured in rounds(cell) if measured.cpu_ms}


def judges(of: str, cell: CellResult, second: CellResult) -> bool:
    """Whether a measure of :data:`TIME` tells which of two cells takes longer.

    CPU time does where both keep as many cores busy while they have them, in the round that keeps the most: a cell that
    sleeps, or that divides its work among more threads, takes another time for the same CPU time.
    """
    if of != "cpu":
        return True
    cores = [max(map(_busy_cores, rounds(member)), default=0.0) for member in (cell, second)]
    return min(cores) > 0 and max(cores) <= _AS_BUSY * min(cores)


def _busy_cores(measured: Round) -> float:
    """How many cores a run keeps busy, not counting the time in which others have them: CPU time and shares are of all
    runs together, and waits are in the mean of these only, since most runs may have none."""
    had = measured.mean * (1 - (measured.waited or 0.0) - (measured.stolen or 0.0))
    return (measured.cpu_ms or 0.0) / had if had > 0 else 0.0


Measures = Mapping[str, Callable[[CellResult], Medians]]
"""What cells are compared by: by name, the value in each round, in the order in which they are used where the ones
before have too few rounds."""

TIME: Measures = {"p50": calm_rounds, "cpu": cpu_rounds}


def median(cell: CellResult) -> float | None:
    """The median latency of a cell in milliseconds; ``None`` if it was not measured."""
    return None if cell.result is None else cell.result.latency_ms.p50


def calm_median(cell: CellResult | None) -> float | None:
    """The same of a correct cell that was not disturbed in every round; ``None`` for any other."""
    is_calm = cell is not None and cell.status == "ok" and cell.result is not None and not cell.result.disturbed
    return median(cell) if cell is not None and is_calm else None


def names(cells: Iterable[CellResult]) -> str:
    """The first few cells of a group."""
    return shortened([cell.name for cell in cells])
