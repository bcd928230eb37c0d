"""From the hidden states of tokens to one vector for each text, as sentence-transformers computes it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from isorun.errors import InvalidFeeds

Floats = npt.NDArray[np.floating[Any]]
Mask = npt.NDArray[np.integer[Any]] | npt.NDArray[np.floating[Any]]

_TINY = 1e-9


def pool(hidden: Floats, mask: Mask, modes: Sequence[str]) -> Floats:
    """One vector for each row: the results of the poolings, side by side.

    Args:
        hidden: (batch, sequence, width). Values at masked positions are not read.
        mask: (batch, sequence), 1 at real tokens; or their weights, for means.
        modes: of :data:`isorun.models.sentence_settings.POOLINGS`.

    Returns:
        (batch, width * number of modes).

    Raises:
        InvalidFeeds: a row without a real token has no maximum.
    """
    return np.concatenate([_POOLINGS[mode](hidden, mask) for mode in modes], axis=1)


def mean_pool(hidden: Floats, mask: Mask) -> Floats:
    """The mean over real tokens: (batch, width); zeros for a row without a real token."""
    total: Floats = _sum(hidden, mask) / np.maximum(_count(hidden, mask), _TINY)
    return total


def normalized(vectors: Floats) -> Floats:
    """Vectors (..., width) of length 1; zero vectors are left as they are."""
    with np.errstate(under="ignore"):  # no error, even if an application has NumPy raise errors
        lengths = np.linalg.norm(vectors, axis=-1, keepdims=True)
        units: Floats = vectors / np.maximum(lengths, 1e-12)
    return units


def cosine_matrix(vectors: Floats) -> npt.NDArray[np.float64]:
    """The cosine similarity of all pairs of vectors.

    Args:
        vectors: (count, width).

    Returns:
        (count, count), float64; 0 for zero vectors.
    """
    units = normalized(vectors.astype(np.float64))
    product: npt.NDArray[np.float64] = units @ units.T
    return product


def _sum(hidden: Floats, weights: npt.NDArray[Any]) -> Floats:
    if not weights.all():  # a value at padding may be NaN, so it is replaced rather than multiplied by zero
        hidden = np.where(weights[..., None] != 0, hidden, 0)
    total: Floats = np.einsum("bsw,bs->bw", hidden, weights.astype(hidden.dtype))
    return total


def _count(hidden: Floats, weights: npt.NDArray[Any]) -> Floats:
    count: Floats = weights.sum(axis=1, keepdims=True).astype(hidden.dtype)
    return count


def _weighted_mean(hidden: Floats, mask: Mask) -> Floats:
    """The mean, each token weighted by its position: the first real token, counted by any prompt before it, has 1."""
    weights = mask * np.arange(1, mask.shape[1] + 1)
    total: Floats = _sum(hidden, weights) / np.maximum(_count(hidden, weights), 1)
    return total


def _mean_sqrt(hidden: Floats, mask: Mask) -> Floats:
    total: Floats = _sum(hidden, mask) / np.sqrt(np.maximum(_count(hidden, mask), _TINY))
    return total


def _max(hidden: Floats, mask: Mask) -> Floats:
    if not mask.any(axis=1).all():
        raise InvalidFeeds("A text has no tokens but those of its prompt, so that pooling='max' has no value. Omit it")
    largest: Floats = np.where(mask[..., None] != 0, hidden, -np.inf).max(axis=1)
    return largest


def _first(hidden: Floats, mask: Mask) -> Floats:
    first: Floats = hidden[np.arange(len(hidden)), mask.argmax(axis=1)]
    return first


def _last(hidden: Floats, mask: Mask) -> Floats:
    last: Floats = hidden[np.arange(len(hidden)), mask.shape[1] - 1 - mask[:, ::-1].argmax(axis=1)]
    return np.where(mask.any(axis=1, keepdims=True), last, 0)  # as sentence-transformers, where a prompt is all


_POOLINGS: dict[str, Callable[[Floats, Mask], Floats]] = {
    "mean": mean_pool,
    "cls": _first,
    "max": _max,
    "lasttoken": _last,
    "weightedmean": _weighted_mean,
    "mean_sqrt_len_tokens": _mean_sqrt,
}
