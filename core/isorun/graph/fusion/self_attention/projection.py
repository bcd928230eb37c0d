"""Which columns of which dense layers compute queries, keys and values."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise, permutations

import numpy as np

from isorun.graph.analysis.evaluate import sizes
from isorun.graph.fusion.self_attention.pattern import AttentionPattern
from isorun.graph.matching.subgraph import DenseLayer


@dataclass(frozen=True)
class Projection:
    """The columns of a dense layer that compute queries, keys or values."""

    layer: DenseLayer
    columns: tuple[int, ...]

    def of(self, array: np.ndarray) -> np.ndarray:
        """The projection's part of an array whose last dimension is the layer's columns."""
        whole = self.columns == tuple(range(array.shape[-1]))
        return array if whole else array[..., list(self.columns)]


def assignments(pattern: AttentionPattern, heads: int) -> list[tuple[Projection, ...]]:
    """Every assignment of projections to Q, K and V, in every layout of a layer with several."""
    wide, narrow = pattern.width, pattern.key_width
    orders: dict[tuple[Projection, ...], None] = {}
    for layout in _layouts(pattern.layers, wide, narrow, heads):
        for order in permutations(layout):
            if [len(part.columns) for part in order] == [wide, narrow, narrow]:
                orders[order] = None
    return list(orders)


def _layouts(layers: tuple[DenseLayer, ...], wide: int, narrow: int, heads: int) -> Iterator[list[Projection]]:
    """The three projections: in a layer each, or in one or two layers, concatenated, interleaved by head, or
    interleaved by column."""
    columns = [sizes(layer.weight)[1] for layer in layers]
    if len(layers) == 3:
        yield [Projection(layer, tuple(range(count))) for layer, count in zip(layers, columns, strict=True)]
        return
    for widths in ((wide, narrow, narrow), (narrow, wide, narrow), (narrow, narrow, wide)):
        ends = np.cumsum((0, *widths)).tolist()
        if columns == ends[3:]:
            yield [Projection(layers[0], tuple(range(*span))) for span in pairwise(ends)]
    if wide == narrow:
        for by in ("blocks", "heads", "columns"):
            parts = []
            for layer, total in zip(layers, columns, strict=True):
                count = total // wide
                shape = {"blocks": (count, -1), "heads": (heads, count, -1), "columns": (-1, count)}[by]
                axis = {"blocks": 0, "heads": 1, "columns": 1}[by]
                for index in range(count):
                    chosen = np.arange(total).reshape(shape).take(index, axis).reshape(-1)
                    parts.append(Projection(layer, tuple(chosen.tolist())))
            if len(parts) == 3:
                yield parts
    elif len(layers) == 2:
        for merged, paired in (layers, layers[::-1]):
            if sizes(merged.weight)[1] == wide and sizes(paired.weight)[1] == 2 * narrow:
                halves = tuple(range(narrow)), tuple(range(narrow, 2 * narrow))
                yield [Projection(merged, tuple(range(wide))), *(Projection(paired, half) for half in halves)]
