"""Values for each pair of positions that depend on their distance alone, read off by evaluation.

Relative position biases (buckets of any number and range) become a table by distance, and biases in proportion to the
distance (ALiBi) their slopes, so that their computation has one form in fused graphs.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from isorun.graph.analysis.evaluate import CannotEvaluate, ancestors, is_constant, sizes
from isorun.graph.fusion.self_attention.pattern import AttentionPattern
from isorun.graph.matching import subgraph
from isorun.graph.matching.probes import Probes
from isorun.graph.ops import positions

_LONG_LENGTHS = (400, 1200)  # at one of them, every bucket of distances occurs


def canonical(
    probes: Probes,
    pattern: AttentionPattern,
    bias: ir.Value,
    key_mask: ir.Value,
    op: subgraph.Before,
    dtype: ir.DataType,
) -> ir.Value | None:
    """A bias (1, N, S, S) in the form of fused graphs; ``None`` if it depends on more than the distance, or the graph
    accepts one length only.

    Args:
        probes: evaluate the graph on samples.
        pattern: the attention.
        bias: the value.
        key_mask: the mask of the attention (B, S), which has the length.
        op: where nodes are put.
        dtype: the type of the result.
    """
    rows = None if probes.fixed else along(probes, pattern, bias)
    if rows is None:
        return None
    if (slopes := positions.slopes(rows)) is not None:
        slope = op.constant("slopes", slopes.astype(dtype.numpy()).reshape(1, -1, 1, 1))
        return positions.linear_bias(op, key_mask, slope)
    near = positions.trimmed(rows)
    if near is rows:
        return None
    table = op.constant("by_distance", near.astype(dtype.numpy()))
    return positions.relative_bias(op, key_mask, table, len(near) // 2)


def for_each_pair(
    probes: Probes, pattern: AttentionPattern, bias: ir.Value, key_mask: ir.Value, op: subgraph.Before
) -> ir.Value:
    """A bias as (1 or B, 1 or N, S, S): expanded if it has fewer dimensions, or one number for all queries.

    Args:
        probes, pattern, bias, key_mask, op: as for :func:`canonical`.
    """
    length = probes.lengths[0]
    shape = pattern.evaluated(probes, bias, length).shape
    if len(shape) == 4 and shape[2] == length:
        return bias
    size = op("Shape", key_mask, start=1, end=2)
    expanded = op("Expand", bias, op("Concat", [1, 1], size, size, axis=0))
    expanded.type, expanded.shape = bias.type, ir.Shape([None] * 4)
    return expanded


def along(
    probes: Probes, pattern: AttentionPattern, value: ir.Value, lengths: Sequence[int] = _LONG_LENGTHS
) -> np.ndarray | None:
    """A value (..., S, S) by distance, from -(S - 1) to S - 1: (2 S - 1, N) with N the size of the third dimension from
    the last, 1 if all of it is alike; ``None`` if it depends on more.

    S is the first of the lengths at which the farthest distances are alike, or else the last of them; in a graph for
    one length, that one.
    """
    shapes = (sizes(constant) for constant in ancestors(value) if is_constant(constant))
    # For every pair of positions; exporters slice the first of them. One element is a number of each head.
    tables = [shape[-1] for shape in shapes if len(shape) > 2 and shape[-1] == shape[-2] > 1]
    rows = None
    shorter = False
    for longest in probes.lengths if probes.fixed else lengths:
        length, squares = min([longest, *tables]), None
        while squares is None:
            try:
                squares = pattern.evaluated(probes, value, length)
            except CannotEvaluate:  # beyond a table of positions that it reads the length from
                shorter, length = True, length // 2
                if probes.fixed or length < max(probes.lengths):
                    raise
        rows = _by_distance(squares, length)
        if rows is None:
            return None
        if positions.slopes(rows) is not None or positions.trimmed(rows) is not rows:
            longest = min([lengths[-1], *tables])
            is_last = probes.fixed or shorter or longest <= length
            to_check = probes.lengths if is_last else (*probes.lengths, longest)
            return rows if all(_holds(rows, probes, pattern, value, length) for length in to_check) else None
        if shorter:
            return None  # the farthest distances may differ
    return rows


def _by_distance(squares: np.ndarray, length: int) -> np.ndarray | None:
    """A value (..., S, S) of this length by distance; ``None`` if it depends on more."""
    if squares.ndim < 2 or squares.shape[-2:] != (length, length):
        return None
    heads = squares.shape[-3] if squares.ndim > 2 else 1
    squares = squares.reshape(-1, heads, length, length)
    if (squares != squares[:1]).any():
        return None
    if (squares == squares[:, :1]).all():
        squares = squares[:, :1]
    return positions.along_distances(squares[0])


def _holds(rows: np.ndarray, probes: Probes, pattern: AttentionPattern, value: ir.Value, length: int) -> bool:
    """Whether rows by distance, proportional to it or alike beyond some, are what a value is at another length, as far
    as there are rows so long."""
    try:
        measured = _by_distance(pattern.evaluated(probes, value, length), length)
    except CannotEvaluate:  # beyond a table of positions
        return length > max(probes.lengths)
    if measured is None:
        return False
    farthest, far = len(rows) // 2, len(measured) // 2
    behind = np.arange(-far, far + 1)
    if (slopes := positions.slopes(rows)) is not None:
        return np.allclose(measured, np.abs(behind)[:, None] * slopes, rtol=1e-6, atol=0)
    return np.array_equal(
        measured, np.broadcast_to(rows[np.clip(behind, -farthest, farthest) + farthest], measured.shape)
    )
