"""The shapes of a model's outputs, before it has run: by the names that their dimensions share with inputs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from isorun.errors import UnsupportedModel
from isorun.types import ModelInfo


def output_shapes(info: ModelInfo, sizes: Mapping[str, int]) -> dict[str, tuple[tuple[int, ...], np.dtype[Any]]]:
    """Shape and type of each output, in the model's order.

    Args:
        info: the model.
        sizes: of its symbolic dimensions, by name.

    Raises:
        UnsupportedModel: a dimension of an output is not one of those, or its type has no fixed size.
    """
    found = {}
    for spec in info.outputs:
        if spec.dtype is None:
            raise UnsupportedModel(f"The output {spec.name!r} is {spec.type}, which has no place of a fixed size")
        shape = []
        for size in spec.shape if spec.shape is not None else (None,):
            known = size if isinstance(size, int) else sizes.get(size or "")
            if known is None:
                raise UnsupportedModel(
                    f"The shape of the output {spec.name!r} ({spec.shape}) does not follow from those of the inputs, "
                    "so it cannot have a place of its own on the device beforehand"
                )
            shape.append(known)
        found[spec.name] = (tuple(shape), spec.dtype)
    return found


def sizes_of(info: ModelInfo, feeds: Mapping[str, Any]) -> dict[str, int]:
    """The sizes of the inputs' symbolic dimensions in feeds that were checked."""
    found: dict[str, int] = {}
    for spec in info.inputs:
        if spec.name in feeds and spec.shape is not None:
            pairs = zip(spec.shape, feeds[spec.name].shape, strict=True)
            found.update({symbol: size for symbol, size in pairs if isinstance(symbol, str)})
    return found
