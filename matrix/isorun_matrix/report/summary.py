"""What every report says about a run: cells by model and shape, the fastest correct one and how sure that is, and
remarks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from isorun_matrix.jobs import CONTROL
from isorun_matrix.measurement.statistics import verdicts
from isorun_matrix.measurement.statistics.verdicts import NEEDED, Medians, Ratio
from isorun_matrix.report.formatting import NONE, alternatives, counts, number, shortened
from isorun_matrix.results.audit import CACHED
from isorun_matrix.results.records import LACKING, CellResult


_REMEDY = "More rounds or a quieter machine may decide."


@dataclass(frozen=True)
class Group:
    """The cells of one model at one shape.

    Attributes:
        model, shape: their names in the spec.
        cells: in the spec's order, without the control.
        fastest: the correct cell with the lowest median latency; ``None`` if none is correct.
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
        """The median latency of the first correct cell, divided by that of a cell."""
        first, own = None if self.baseline is None else median(self.baseline), median(cell)
        return None if first is None or own is None else first / own

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
        return alternatives([self.fastest.name, *(cell.name for cell in equal)])

    @property
    def certainty(self) -> str:
        """How sure :attr:`choice` is."""
        if self.fastest is None:
            return "no cell has correct outputs"
        if not self.ratios:
            return "the only one with correct outputs"
        return f"{self.verdict(self.fastest) or 'no verdict'}: {self._evidence}"

    @property
    def conclusion(self) -> str:
        """What the group shows, in a sentence, and how sure that is."""
        if self.fastest is None:
            return "No cell has correct outputs."
        leader, p50 = self.fastest.name, f"p50 {number(median(self.fastest))} ms"
        if not self.ratios:
            return f"{leader} is the only one with correct outputs ({p50})."
        match self.verdict(self.fastest):
            case "fastest":
                return f"{leader} is the fastest ({p50}): {self._evidence}."
            case "tied":
                return f"{leader} ({p50}) is tied with {names(self._others('tied'))}: {self._evidence}."
        return f"{leader} has the lowest median ({p50}), but {self._evidence}. {_REMEDY}"

    @property
    def _evidence(self) -> str:
        """What the verdict on the fastest cell is based on: the ratio of the next one among those that decide it."""
        assert self.fastest is not None
        verdict = self.verdict(self.fastest)
        if verdict is None:
            return "there are too few undisturbed rounds for a verdict"
        others = self._others("slower" if verdict == "fastest" else verdict)
        following, ratio = min(((cell, self._ratio(cell)) for cell in others), key=lambda pair: pair[1].ratio)
        low, high = number(ratio.interval.low), number(ratio.interval.high)
        sure = f"{low} to {high} x, {ratio.interval.level:.0%} confidence, {ratio.rounds} rounds"
        slower = f"{following.name}, takes {number(ratio.ratio)} x as long ({sure})"
        match verdict:
            case "fastest":
                return f"the next one, {slower}"
            case "tied":
                return f"within 5 %; the next one, {slower}"
        more = f"; {len(others) - 1} more are ambiguous" if len(others) > 1 else ""
        lack = "the interval includes 1" if ratio.interval.low <= 1 else f"a verdict needs {number(ratio.needed)} x"
        return f"the next one, {slower}, and {lack}{more}"

    def _others(self, verdict: str | None) -> list[CellResult]:
        return [cell for cell in self.cells if cell is not self.fastest and self.verdict(cell) == verdict is not None]

    def _ratio(self, cell: CellResult) -> Ratio:
        ratio = self.ratios[cell.id]
        assert ratio is not None
        return ratio


def groups(cells: Iterable[CellResult]) -> list[Group]:
    """Cells by model and shape, in the spec's order."""
    found: dict[tuple[str, str], list[CellResult]] = {}
    for cell in cells:
        found.setdefault((cell.model, cell.shape), []).append(cell)
    return [_group(model, shape, cells) for (model, shape), cells in found.items()]


def _group(model: str, shape: str, cells: Sequence[CellResult]) -> Group:
    shown = tuple(cell for cell in cells if not cell.control)
    calm = [rounds for cell in cells if (rounds := calm_rounds(cell))]
    control = next((cell for cell in cells if cell.control), None)
    noise = twin = None
    if control is not None:
        twin = next(cell for cell in shown if cell.name == control.name.replace(CONTROL, ""))
        noise = verdicts.self_ratio(calm_rounds(twin), calm_rounds(control))
    correct = sorted((p50, index) for index, cell in enumerate(shown) if cell.status == "ok" and (p50 := median(cell)))
    fastest = shown[correct[0][1]] if correct else None
    ratios = {
        shown[index].id: verdicts.against(calm_rounds(fastest), calm_rounds(shown[index]), calm, noise or 0.0)
        for _, index in correct[1:]
        if fastest is not None
    }
    return Group(model, shape, shown, fastest, ratios, noise, None if twin is None else twin.name)


def calm_rounds(cell: CellResult) -> Medians:
    """The median of a cell in each undisturbed round."""
    return {} if cell.result is None else {each.number: each.p50 for each in cell.result.rounds if not each.disturbed}


def median(cell: CellResult) -> float | None:
    """The median latency of a cell in milliseconds; ``None`` if it was not measured."""
    return None if cell.result is None else cell.result.latency_ms.p50


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


def failures(cells: Iterable[CellResult]) -> list[str]:
    """For each status but ``ok``, which backends of which models have it."""
    found: dict[str, dict[str, dict[str, None]]] = {}
    for cell in cells:
        if cell.status != "ok" and not cell.control:
            found.setdefault(cell.status, {}).setdefault(cell.model, {})[cell.name] = None
    return [
        f"{status}: " + "; ".join(f"{model}: {shortened(list(named))}" for model, named in models.items())
        for status, models in found.items()
    ]


def tally(cells: Iterable[CellResult]) -> str:
    """How many cells have each status."""
    return counts(Counter(cell.status for cell in cells if not cell.control))


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
    for cell, result in measured:
        if (ran := result.provenance.precision) != cell.precision:
            found.append(f"{cell.name} ran in {ran}")
    found += [f"{cell.name}: kept from an earlier session; {cell.kept}" for cell in group.cells if cell.kept]
    return [*dict.fromkeys(found), *_doubts(group)]


def _doubts(group: Group) -> Iterator[str]:
    measured = [(cell, cell.result) for cell in group.cells if cell.result is not None]
    few = [f"{cell.name} ({sum(not each.disturbed for each in result.rounds)})" for cell, result in measured]
    few = [text for text, (cell, _) in zip(few, measured, strict=True) if len(calm_rounds(cell)) < NEEDED]
    if few:
        yield f"fewer than {NEEDED} undisturbed rounds, so without a verdict: {shortened(few)}"
    disturbed = {
        cell.name: f"{sum(each.disturbed for each in result.rounds)} of {len(result.rounds)}"
        for cell, result in measured
        if any(each.disturbed for each in result.rounds)
    }
    if disturbed:
        rounds = shortened([f"{name} ({count})" for name, count in disturbed.items()])
        yield (
            f"disturbed rounds, left out unless all are: {rounds}. "
            "Other programs or virtual machines used the cores, or a cell has more threads than there are cores."
        )
    calm = [(cell, result) for cell, result in measured if not result.disturbed]
    cached = [f"{cell.name} ({result.repeated:.2f} x)" for cell, result in calm if result.repeated < CACHED]
    if cached:
        yield f"faster where feeds repeat, as if answers were cached: {shortened(cached)}"
    unsteady = [cell.name for cell, result in calm if not result.steady]
    if unsteady:
        yield f"still getting faster when the warm-up ended: {shortened(unsteady)}"
    if group.noise is not None:
        yield f"noise: {group.twin}, measured twice in each round, differs from itself by {group.noise:.1%}"
