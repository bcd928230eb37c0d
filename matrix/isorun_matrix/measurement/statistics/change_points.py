"""Where the time of a cell changed over many runs.

The logarithms of the medians are divided into pieces of equal mean, by least squares with a penalty for each piece. The
noise is estimated from the differences of successive runs, so that a change hardly counts in it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

FEWEST = 8
"""Fewer runs show no change points."""

_PENALTY = 30.0  # of a change, in squares of the noise; docs/matrix-compare.md has the error rates
_PIECE = 3  # runs of a piece at least, whose median decides
_WINDOW, _MOST = 5, 3.0  # a run counts as at most so far, in the noise, from the median of those around it
_FLOOR = 0.005  # of the noise, relative: sessions differ by as much
_MINIMUM = 0.02  # a smaller change is no news
_SHIFT = 2  # how far another run moves the place of a change


class ChangePoint(NamedTuple):
    """A change of a cell.

    Attributes:
        run: the index of the first run after it.
        ratio: the median of the runs after it, to the next change, divided by that of the runs before it.
        new: whether it is not found without the last run.
    """

    run: int
    ratio: float
    new: bool


def change_points(medians: Sequence[float | None], cells: int = 1) -> list[ChangePoint]:
    """The changes of a cell in their order; none if fewer than :data:`FEWEST` runs count.

    Args:
        medians: of the runs, the oldest first, all above 0; ``None`` for a run that does not count.
        cells: how many cells are looked at; the more, the larger a change must be.
    """
    runs = [index for index, median in enumerate(medians) if median is not None]
    times = np.log([median for median in medians if median is not None])
    without_last = times[:-1] if runs and runs[-1] == len(medians) - 1 else times
    earlier = [place for place, _ in _changes(without_last, cells)]
    return [
        ChangePoint(runs[place], ratio, not any(abs(place - known) <= _SHIFT for known in earlier))
        for place, ratio in _changes(times, cells)
    ]


def _changes(times: npt.NDArray[np.float64], cells: int) -> list[tuple[int, float]]:
    """Where the logarithms of times change, and by what ratio."""
    bounds = [0, *_places(times, cells), len(times)]
    while len(bounds) > 2:  # small steps are joined, the smallest first: several of them may be a change
        levels = [float(np.median(times[start:end])) for start, end in itertools.pairwise(bounds)]
        steps = np.diff(levels)
        smallest = int(np.argmin(np.abs(steps)))
        if abs(steps[smallest]) >= _MINIMUM:
            break
        del bounds[smallest + 1]
    else:
        return []
    return [
        (_first_after(times, range(start + 1, end), place, before, after), math.exp(after - before))
        for (start, place, end), (before, after) in zip(
            zip(bounds, bounds[1:], bounds[2:], strict=False), itertools.pairwise(levels), strict=True
        )
    ]


def _first_after(times: npt.NDArray[np.float64], within: range, place: int, before: float, after: float) -> int:
    """The first run after a change, near the place that a minimum length of pieces allowed."""
    nearer = np.abs(times - before) - np.abs(times - after)  # above 0 for a run that is nearer to the time after it
    near = [run for run in range(place - _PIECE + 1, place + _PIECE) if run in within]
    return min(near, key=lambda run: float(nearer[within.start : run].sum() - nearer[run : within.stop].sum()))


def _places(times: npt.NDArray[np.float64], cells: int) -> list[int]:
    if len(times) < FEWEST:
        return []
    from scipy.ndimage import median_filter

    steps = np.diff(times)
    noise = max(1.4826 * float(np.median(np.abs(steps - np.median(steps)))) / np.sqrt(2), _FLOOR)
    around = median_filter(times, size=_WINDOW, mode="mirror")
    kept = np.clip(times, around - _MOST * noise, around + _MOST * noise)  # a single slow run is no change
    return _starts((kept - kept.mean()) / noise, _PENALTY + 2 * np.log(cells))


def _starts(values: npt.NDArray[np.float64], penalty: float) -> list[int]:
    """Where pieces start, but the first: the division of least squared error to the means of pieces, plus penalties.

    Optimal partitioning (Jackson et al., "An algorithm for optimal partitioning of data on an interval", 2005).
    """
    sums, squares = (np.concatenate([[0.0], np.cumsum(powers)]) for powers in (values, values**2))
    costs, last_starts = np.full(len(sums), np.inf), np.zeros(len(sums), int)  # of the values before an end
    costs[0] = 0.0
    for end in range(_PIECE, len(sums)):
        starts = np.arange(end - _PIECE + 1)
        errors = squares[end] - squares[starts] - (sums[end] - sums[starts]) ** 2 / (end - starts)
        totals = costs[starts] + errors + penalty
        last_starts[end] = totals.argmin()
        costs[end] = totals.min()
    places: list[int] = []
    end = len(values)
    while end := int(last_starts[end]):
        places.append(end)
    return places[::-1]
