"""The score of a document for a query, by the vectors of their tokens."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from isorun.errors import InvalidArgument

Vectors = npt.NDArray[np.float32]
_VALUES = 1 << 24  # similarities of tokens that are in memory at once: 64 MiB


def max_sim(queries: Sequence[npt.ArrayLike], documents: Sequence[npt.ArrayLike], *, mean: bool = False) -> Vectors:
    """The sum over a query's tokens of the greatest dot product with a token of a document
    (https://arxiv.org/abs/2004.12832).

    Args:
        queries, documents: the vectors of each one's tokens, (tokens, dimension).
        mean: divide by the number of the query's tokens.

    Returns:
        (queries, documents), float32.

    Raises:
        InvalidArgument: an item is not a matrix with rows, or the dimensions differ.
    """
    wanted = [_matrix(item, f"queries[{position}]") for position, item in enumerate(queries)]
    stored = [_matrix(item, f"documents[{position}]") for position, item in enumerate(documents)]
    widths = {matrix.shape[1] for matrix in (*wanted, *stored)}
    if len(widths) > 1:
        raise InvalidArgument(f"queries and documents must have vectors of one dimension, got {sorted(widths)}")
    scores = np.empty((len(wanted), len(stored)), np.float32)
    longest = max((len(matrix) for matrix in wanted), default=1)
    for start, stop in _chunks([len(matrix) for matrix in stored], max(1, _VALUES // longest)):
        joined = np.concatenate(stored[start:stop])
        starts = np.cumsum([0, *(len(matrix) for matrix in stored[start : stop - 1])])
        for row, query in enumerate(wanted):
            best = np.maximum.reduceat(query @ joined.T, starts, axis=1)
            scores[row, start:stop] = best.mean(axis=0) if mean else best.sum(axis=0)
    return scores


def _chunks(lengths: Sequence[int], budget: int) -> list[tuple[int, int]]:
    """Ranges of consecutive documents whose tokens number at most the budget, or of one document."""
    chunks, start, total = [], 0, 0
    for position, length in enumerate(lengths):
        if position > start and total + length > budget:
            chunks.append((start, position))
            start, total = position, 0
        total += length
    return [*chunks, (start, len(lengths))] if lengths else []


def _matrix(vectors: npt.ArrayLike, name: str) -> Vectors:
    matrix = np.asarray(vectors, np.float32)
    if matrix.ndim != 2 or not len(matrix):
        raise InvalidArgument(f"{name} must be a matrix with a row for each token, got shape {matrix.shape}")
    return matrix
