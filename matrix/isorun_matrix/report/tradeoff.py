"""What a search, or a score by labels, keeps, weighed against speed."""

from __future__ import annotations

from isorun_matrix.report.formatting import ratio, share
from isorun_matrix.report.summary import Group, calm_rounds, median
from isorun_matrix.results.records import CellResult


def best(group: Group) -> list[CellResult]:
    """The correct cells that no other one beats in both speed and what vectors keep, the fastest first."""
    timed = [cell for cell in _measured(group) if median(cell) is not None]
    front: list[CellResult] = []
    for cell in sorted(timed, key=lambda cell: (median(cell), -_kept(cell), cell.id)):
        if not front or _kept(cell) > _kept(front[-1]):
            front.append(cell)
    return front


def conclusions(group: Group) -> list[str]:
    """A sentence for each of the best cells that loses something: what it gains in speed, and what it keeps."""
    first = group.baseline
    sentences = []
    for cell in best(group):
        assert cell.result is not None
        assert cell.result.quality is not None
        quality, speed_up = cell.result.quality, group.speed_up(cell)
        kept = quality.share
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


def _measured(group: Group) -> list[CellResult]:
    return [cell for cell in group.cells if cell.status == "ok" and cell.result and cell.result.quality]


def _kept(cell: CellResult) -> float:
    assert cell.result is not None
    assert cell.result.quality is not None
    return cell.result.quality.share.value
