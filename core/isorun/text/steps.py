"""The layers before and after a pooling, in NumPy."""

from __future__ import annotations

from pathlib import Path

from isorun.errors import InvalidModel
from isorun.models.dense import Dense, Layer, WordWeights
from isorun.models.pooling import normalized
from isorun.text.model import Array


def applied(step: Layer | str, vectors: Array) -> Array:
    """What a step makes of vectors (..., width)."""
    if isinstance(step, str):
        result: Array = normalized(vectors)
        return result
    assert not isinstance(step, WordWeights), "the pooling applies them"
    return step(vectors)


def width_after(step: Layer, width: int, folder: Path) -> int:
    """The width of vectors after a step.

    Raises:
        InvalidModel: it expects another width.
    """
    if isinstance(step, Dense):
        expected, width_out = step.weight.shape[1], len(step.weight)
    elif isinstance(step, WordWeights):
        return width
    else:
        expected = width_out = len(step.weight)
    if expected != width:
        raise InvalidModel(f"A layer of {folder} expects {expected} values, got {width}")
    return width_out
