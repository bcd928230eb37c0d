"""Masks of pairs: a value for each query and key, a (batch, sequence, sequence) input or a comparison of segments."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from isorun.graph.analysis import numbers
from isorun.graph.analysis.evaluate import data_inputs
from isorun.graph.fusion.self_attention.masks import KeyMask
from isorun.graph.io.nodes import needed
from isorun.graph.matching import subgraph
from isorun.graph.matching.probes import Probes

_SEGMENTS = (-1, 1, 2)
_MAX_LENGTH = 1024  # the longest mask that is evaluated


def split(mask: KeyMask, probes: Probes, op: subgraph.Before) -> tuple[ir.Value, ir.Value]:
    """The key mask (B, S) int64 and the mask of pairs (B, 1, S, S) bool of an attention.

    A token is a key if any query of its row attends to it; every token is one if such a query has no key itself, since
    that query attends to all positions alike.

    Args:
        mask: a mask of pairs.
        probes: evaluate the graph on samples.
        op: where nodes are put.
    """
    pairs = _pairs(mask, op)
    return _keys(pairs, probes, op), pairs


def _pairs(mask: KeyMask, op: subgraph.Before) -> ir.Value:
    value = needed(mask.origin)
    rank = len(needed(value.shape))
    if value.dtype != ir.DataType.BOOL:
        value = op.cast(value, ir.DataType.BOOL)
    if mask.inverted:
        value = op("Not", value)
    if rank == 3:
        value = op("Unsqueeze", value, [1])
    value.shape, value.type = ir.Shape([None, 1, None, None]), ir.TensorType(ir.DataType.BOOL)
    return value


def _keys(pairs: ir.Value, probes: Probes, op: subgraph.Before) -> ir.Value:
    for source in sorted(data_inputs(pairs), key=lambda value: value.name or ""):
        if source.shape is not None and len(source.shape) == 2 and _marks_keys(source, pairs, probes):
            if source.dtype == ir.DataType.INT64:
                return source
            marks = source if source.dtype == ir.DataType.BOOL else op.cast(source, ir.DataType.BOOL)
            return op.cast(marks, ir.DataType.INT64)
    numbers = op.cast(pairs, ir.DataType.INT64)
    by_key, by_query = (op("ReduceMax", numbers, axes=[1, axis], keepdims=0) for axis in (2, 3))
    without = op.cast(op("Greater", by_key, by_query), ir.DataType.INT64)  # attended to, without a key
    keys = op("Max", by_key, op("ReduceMax", without, axes=[1], keepdims=1))
    keys.shape, keys.type = ir.Shape([None, None]), ir.TensorType(ir.DataType.INT64)
    return keys


def _marks_keys(source: ir.Value, pairs: ir.Value, probes: Probes) -> bool:
    """Whether an input is nonzero at the keys and 0 at all others, whatever the segments are."""
    rng = np.random.default_rng(0)
    lengths = probes.lengths
    if not probes.fixed:  # and in rows that are longer than what a slice leaves of them
        lengths += tuple(number + 1 for number in numbers.compared([pairs]) if lengths[-1] <= number < _MAX_LENGTH)
    for length in lengths:
        feeds = probes.feeds(length)
        samples = {
            value: rng.choice([0, *_SEGMENTS], feeds[value].shape).astype(feeds[value].dtype)
            for value in data_inputs(pairs)
            if value in feeds
        }
        mask = probes.masks(length)
        samples[source] = (mask * rng.choice(_SEGMENTS, mask.shape)).astype(feeds[source].dtype)
        allowed = probes.evaluator({**feeds, **samples})(pairs)[:, 0]
        by_key, by_query = allowed.any(axis=1), allowed.any(axis=2)
        keys = by_key | np.any(by_key & ~by_query, axis=1, keepdims=True)
        if not np.array_equal(keys, mask != 0):
            return False
    return True
