"""The widths of vectors before and after layers."""

from __future__ import annotations

from pathlib import Path

from isorun.errors import InvalidModel
from isorun.models.dense import Dense, Layer, WordWeights


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
