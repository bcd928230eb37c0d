"""The shapes of a model's outputs before it runs, derived from the dimension names that they share with inputs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from isorun.plugin import ModelInfo, UnsupportedModel


def output_shapes(info: ModelInfo, sizes: Mapping[str, int]) -> dict[str, tuple[tuple[int, ...], np.dtype[Any]]]:
    """Shape and dtype of each output, in the model's order. Raises ``UnsupportedModel`` for a dimension that is not in
    ``sizes``, or elements without a fixed size."""
    shapes = {}
    for spec in info.outputs:
        if spec.dtype is None:
            raise UnsupportedModel(f"Output {spec.name!r} is {spec.type}, which has no fixed size on the device")
        dimensions = [
            size if isinstance(size, int) else sizes.get(size or "")
            for size in (spec.shape if spec.shape is not None else (None,))
        ]
        known = tuple(size for size in dimensions if size is not None)
        if len(known) < len(dimensions):
            raise UnsupportedModel(
                f"Output {spec.name!r} has the shape {spec.shape}, which does not follow from the input shapes: "
                "memory for it cannot be allocated before the run"
            )
        shapes[spec.name] = (known, spec.dtype)
    return shapes


def require_known_shapes(info: ModelInfo) -> None:
    """Raise ``UnsupportedModel`` for an output whose shape the shapes of the inputs do not give."""
    symbols = (size for spec in info.required for size in spec.shape or () if isinstance(size, str))
    output_shapes(info, dict.fromkeys(symbols, 1))


def sizes_of(info: ModelInfo, feeds: Mapping[str, Any]) -> dict[str, int]:
    """The sizes of the symbolic dimensions of required inputs in validated feeds."""
    sizes: dict[str, int] = {}
    for spec in info.required:
        if spec.shape is not None:
            pairs = zip(spec.shape, feeds[spec.name].shape, strict=True)
            sizes.update({symbol: size for symbol, size in pairs if isinstance(symbol, str)})
    return sizes
