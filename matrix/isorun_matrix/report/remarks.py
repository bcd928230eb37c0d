"""Remarks on a run: why cells failed, what is special about figures, and what makes them doubtful."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from isorun_matrix.measurement.statistics.verdicts import NEEDED
from isorun_matrix.report import tradeoff, under_load
from isorun_matrix.report.formatting import counts, number, shortened
from isorun_matrix.report.summary import Group, calm_rounds, rounds
from isorun_matrix.results.records import LACKING, CellResult, Ended


def explanation(ended: Ended) -> str | None:
    """Why a cell or a load is not ok, and the remedy, in a line; ``None`` if there is nothing to explain."""
    if ended.status in ("ok", "pending"):
        return None
    text = " ".join(str(ended.reason).split())
    return f"{text}. {ended.remedy}" if ended.remedy else text


def explanations(cells: Iterable[CellResult]) -> dict[str, list[CellResult]]:
    """Each explanation once, with all its cells."""
    explanations: dict[str, list[CellResult]] = {}
    for cell in cells:
        if (text := explanation(cell)) is not None:
            explanations.setdefault(text, []).append(cell)
    return explanations


def conclusions(group: Group) -> list[str]:
    """What a group shows: which cell is the fastest, what is gained and lost by others, and the rates under load."""
    return [group.conclusion, *tradeoff.conclusions(group), *under_load.best(group)]


def tally(cells: Iterable[CellResult]) -> str:
    """How many cells have each status."""
    return counts(Counter(cell.status for cell in cells if not cell.control))


def kind(cell: CellResult) -> str:
    """``ok``; ``lack``, for a cell that cannot run here or has not run; or ``bad``."""
    return "ok" if cell.status == "ok" else "lack" if cell.status in (*LACKING, "pending") else "bad"


def notes(group: Group) -> list[str]:
    """Remarks on the feeds, on time on the device, on cells that are kept, and on doubtful figures."""
    measured = [(cell, cell.result) for cell in group.cells if cell.result is not None]
    notes = [note for _, result in measured for note in result.notes]
    for cell, result in measured:
        if device := result.device_ms:
            times = f"p50 {number(device.p50)} ms, p99 {number(device.p99)} ms"
            notes.append(f"{cell.name}: {times} on the device alone, by its own events")
    for cell, result in measured:
        if (ran := result.provenance.precision) != cell.precision:
            notes.append(f"{cell.name} ran in {ran}")
    notes += [f"{cell.name}: kept from an earlier session; {cell.kept}" for cell in group.cells if cell.kept]
    notes = [*dict.fromkeys(notes), *warnings(group)]
    if group.noise is not None:
        notes.append(f"noise: {group.twin}, measured twice in each round, differs from itself by {group.noise:.1%}")
    return notes


def disturbed(cells: Iterable[CellResult]) -> Iterator[str]:
    """How many rounds of cells were disturbed, and why."""
    counted = [(cell.name, [measured.disturbed for measured in rounds(cell)]) for cell in cells]
    if names := [f"{name} ({sum(were)} of {len(were)})" for name, were in counted if any(were)]:
        yield (
            f"disturbed rounds, left out unless all are: {shortened(names)}. "
            "Other programs or virtual machines used the cores, or a cell has more threads than there are cores."
        )


def warnings(group: Group) -> Iterator[str]:
    """What makes figures doubtful."""
    measured = [(cell, cell.result) for cell in group.cells if cell.result is not None]
    few = [f"{cell.name} ({len(calm)})" for cell, _ in measured if len(calm := calm_rounds(cell)) < NEEDED]
    if few:
        yield f"fewer than {NEEDED} undisturbed rounds, so without a verdict: {shortened(few)}"
    yield from disturbed(group.cells)
    failed: dict[str, list[str]] = {}
    for cell in group.cells:
        for load in cell.loads:
            if (text := explanation(load)) is not None:
                failed.setdefault(text, []).append(f"{cell.name} ({load.name})")
    yield from (f"not measured under load: {shortened(names)}: {text}" for text, names in failed.items())
    loaded = [(f"{cell.name} ({load.name})", load.result) for cell in group.cells for load in cell.loads if load.result]
    busy = [name for name, result in loaded if result.trials and all(trial.disturbed for trial in result.trials)]
    if busy:
        yield f"disturbed in every measurement under load, which a quiet machine may rank otherwise: {shortened(busy)}"
    quiet = [(cell, result) for cell, result in measured if not result.disturbed]
    cached = [f"{cell.name} ({result.repeated:.2f} x)" for cell, result in quiet if result.cached]
    if cached:
        yield f"faster where feeds repeat, as if answers were cached: {shortened(cached)}"
    cold = [cell.name for cell, result in quiet if not result.warmup_runs]
    if cold:
        yield f"measured without a warm-up (`warmup`): {shortened(cold)}"
    unsteady = [cell.name for cell, result in quiet if not result.steady and result.warmup_runs]
    if unsteady:
        yield f"the warm-up (`seconds`) was too short to show steady times: {shortened(unsteady)}"
