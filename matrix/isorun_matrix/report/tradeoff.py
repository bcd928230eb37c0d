"""What a search, or a score by labels, keeps, weighed against speed."""

from __future__ import annotations

from isorun.quality import Agreement
from isorun.quality.labels import Score
from isorun_matrix.report.formatting import ratio, share
from isorun_matrix.report.summary import Group, calm_rounds, median
from isorun_matrix.results.records import CellResult


def best(group: Group) -> list[CellResult]:
    """The correct cells that no other one beats in both speed and what vectors keep, the fastest first."""
    return [cell for cell, _ in _front(group)]


def conclusions(group: Group) -> list[str]:
    """A sentence for each of the best cells that loses something: what it gains in speed, and what it keeps."""
    first = group.baseline
    sentences = []
    for cell, quality in _front(group):
        kept, speed_up = quality.share, group.speed_up(cell)
        if kept.value == 1 or first is None or speed_up is None:
            continue
        calm = calm_rounds(cell).keys() & calm_rounds(first).keys()
        when = "" if calm else " in disturbed rounds"
        gain = "" if cell is first else f"takes {ratio(1 / speed_up)} as long as {first.name}{when} and "
        if speed_up > 1:
            gain = f"is {ratio(speed_up)} as fast as {first.name}{when} and "
        between = f"{share(kept.low)} to {share(kept.high)}, 95% confidence, {quality.judged_on}"
        sentences.append(f"{cell.name} {gain}keeps {share(kept.value)} of {quality.whole} ({between}).")
    return sentences


def _front(group: Group) -> list[tuple[CellResult, Agreement | Score]]:
    """The best cells, and what they keep."""
    correct = [cell for cell in group.cells if cell.status == "ok" and median(cell) is not None]
    kept = [(cell, cell.result.quality) for cell in correct if cell.result and cell.result.quality]
    front: list[tuple[CellResult, Agreement | Score]] = []
    for cell, quality in sorted(kept, key=lambda pair: (median(pair[0]), -pair[1].share.value, pair[0].id)):
        if not front or quality.share.value > front[-1][1].share.value:
            front.append((cell, quality))
    return front
