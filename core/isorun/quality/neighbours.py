"""How much of a search's results is kept when its vectors are computed in another way.

Every text is a query against all others, by cosine. ``recall`` is the share of the k nearest that both ways have in
common, ``first`` the share of queries with the same nearest text, and ``tau`` Kendall's rank correlation of the
similarities to the reference's 50 nearest.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from isorun.errors import InvalidArgument
from isorun.quality.interval import Interval, mean

Vectors = npt.NDArray[np.floating]

K = 10
"""How many neighbours are compared."""
FEWEST = 24
"""Fewer texts have too few neighbours to compare."""
_RANKED = 50
_BLOCK = 256  # queries at once
# Radians: fp32's rounding turns MiniLM's vectors by as much from batch to batch, or between backends. Cosines are
# compared as angles, since rounding changes them less the closer they are to 1.
ROUNDING = 2e-6


@dataclass(frozen=True, slots=True)
class Agreement:
    """How much of the reference's results is kept.

    Attributes:
        recall: the share of the nearest texts that is kept.
        first: the share of queries whose nearest text is the same.
        tau: Kendall's tau of the similarities.
        k: how many neighbours count.
        queries: how many queries there are.
    """

    recall: Interval
    first: Interval
    tau: Interval
    k: int
    queries: int

    @property
    def share(self) -> Interval:
        """What is kept, as of a :class:`~isorun.quality.labels.Score`."""
        return self.recall

    @property
    def whole(self) -> str:
        """What the share is of, in words."""
        return f"the {self.k} nearest neighbours"

    @property
    def judged_on(self) -> str:
        """How many texts there are, in words."""
        return f"{self.queries} texts"

    def shortfall(self, minimum: float) -> str:
        """Why the share that is kept is too small, in words; empty if its low end reaches a minimum."""
        if self.recall.low >= minimum:
            return ""
        return (
            f"keeps {self.recall} of the {self.k} nearest neighbours of {self.queries} texts, required: {minimum:g} or "
            "more at the low end"
        )


def agreement(reference: Vectors, vectors: Vectors, queries: Vectors | None = None, *, k: int = K) -> Agreement:
    """Compare the neighbours of the same texts.

    Args:
        reference: (texts, width), the vectors to compare with.
        vectors: (texts, any width), the same texts in another way.
        queries: (texts, width of ``vectors``), what is searched for in ``vectors``; ``None`` for ``vectors`` itself.
        k: how many neighbours count; fewer if there are fewer texts.

    Raises:
        InvalidArgument: the numbers of texts differ, or there are fewer than three.
    """
    queries = vectors if queries is None else queries
    count = len(reference)
    if not count == len(vectors) == len(queries):
        raise InvalidArgument(f"Expected vectors of the same texts, got {count}, {len(vectors)} and {len(queries)}")
    if count < 3:
        raise InvalidArgument(f"Neighbours need at least 3 texts, got {count}")
    k = min(k, count - 2)
    expected, index, searched = (units(array) for array in (reference, vectors, queries))
    figures = []
    for start in range(0, count, _BLOCK):
        block = slice(start, start + _BLOCK)
        pairs = zip(expected[block] @ expected.T, searched[block] @ index.T, strict=True)
        figures += [_of_query(start + row, *similarities, k) for row, similarities in enumerate(pairs)]
    recall, first, tau = (mean(np.array(column)) for column in zip(*figures, strict=True))
    return Agreement(recall, first, tau, k, count)


def _of_query(
    query: int, expected: npt.NDArray[np.float64], similarities: npt.NDArray[np.float64], k: int
) -> tuple[float, float, float]:
    """Recall, whether the first is the same, and tau, of one query."""
    from scipy import stats

    expected[query] = similarities[query] = -np.inf  # the text itself
    nearest = np.argsort(-expected, kind="stable")[: max(k, min(_RANKED, len(expected) - 1))]
    results = np.argsort(-similarities, kind="stable")[:k]
    # Texts as near as the k-th, within rounding, are as good as it: their order is not the vectors'.
    angles = _angles(expected)
    recall = np.count_nonzero(angles[results] <= angles[nearest[k - 1]] + ROUNDING) / k
    first = float(angles[results[0]] <= angles[nearest[0]] + ROUNDING)
    ranked = without_rounding(expected[nearest])
    tau = stats.kendalltau(ranked, without_rounding(similarities[nearest])).statistic
    if np.isnan(tau):  # all are equal: there is no order to keep, or none is left
        tau = float(np.ptp(ranked) == 0)
    return recall, first, float(tau)


def without_rounding(cosines: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Figures in the order of cosines, greater ones for nearer texts, that are equal where only rounding differs."""
    angles = _angles(cosines)
    order = np.argsort(angles, kind="stable")
    sorted_ = angles[order]
    # From the first of those that lie close together, so that equal ones are never on two sides of a step.
    starts = np.maximum.accumulate(np.where(np.diff(sorted_, prepend=-np.inf) > ROUNDING, sorted_, -np.inf))
    figures = np.empty_like(angles)
    figures[order] = -(starts + np.floor((sorted_ - starts) / ROUNDING) * ROUNDING)
    return figures


def _angles(cosines: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    angles: npt.NDArray[np.float64] = np.arccos(np.clip(cosines, -1, 1))
    return angles


def units(vectors: Vectors) -> npt.NDArray[np.float64]:
    """Vectors of length 1 in the same directions; those of length 0 stay."""
    array = np.asarray(vectors, np.float64)
    scaled: npt.NDArray[np.float64] = array / np.maximum(np.linalg.norm(array, axis=1, keepdims=True), 1e-12)
    return scaled
