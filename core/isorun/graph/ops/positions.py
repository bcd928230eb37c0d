"""Where tokens stand: positions, and biases by distance, in the one spelling that fused graphs have.

The builder of checkpoints and the fusions both write them from here, so that a checkpoint and its export come to one
graph. Beside each graph is the same in NumPy, by which the fusions recognise it in an export.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import onnx_ir as ir

_FARTHEST = 128  # a distance from which on all are in the last bucket


class Nodes(Protocol):
    """Where nodes are put."""

    def node(self, label: str, kind: str, inputs: Sequence[ir.Value], **attributes: int | list[int]) -> ir.Value:
        """A node of ONNX's own; its value."""

    def constant(self, label: str, array: np.ndarray) -> ir.Value:
        """A constant."""


def row(nodes: Nodes, ids: ir.Value) -> ir.Value:
    """0, 1, 2 and so on for ids (B, S): (S) int64."""
    length = nodes.node("length", "Shape", [ids], start=1, end=2)
    scalar = nodes.node("scalar", "Squeeze", [length])
    zero, one = (nodes.constant(label, np.array(n, np.int64)) for label, n in (("zero", 0), ("one", 1)))
    return nodes.node("row", "Range", [zero, scalar, one])


def in_order(nodes: Nodes, ids: ir.Value) -> ir.Value:
    """Positions that are places: (1, S) int64."""
    return nodes.node("in_order", "Unsqueeze", [row(nodes, ids), nodes.constant("axis", np.array([0], np.int64))])


def counted(nodes: Nodes, ids: ir.Value, padding: int) -> ir.Value:
    """Positions that count the ids that are no padding, for ids (B, S) int64: (B, S) int64.

    The n-th of them, counted from 1, has the position n + padding; padding has the position padding.
    """
    pad = nodes.constant("padding", np.array(padding, np.int64))
    is_padding = nodes.node("is_padding", "Equal", [ids, pad])
    one = nodes.node("ones", "Cast", [nodes.node("is_token", "Not", [is_padding])], to=ir.DataType.INT32.value)
    count = nodes.node("count", "CumSum", [one, nodes.constant("along", np.array(1, np.int64))])
    number = nodes.node("number", "Mul", [count, one])
    return nodes.node("counted", "Add", [nodes.node("wide", "Cast", [number], to=ir.DataType.INT64.value), pad])


def counted_array(ids: np.ndarray, padding: int) -> np.ndarray:
    """What :func:`counted` gives."""
    token = ids != padding
    return np.asarray(np.cumsum(token, axis=1) * token + padding)


def relative_bias(nodes: Nodes, ids: ir.Value, table: ir.Value, buckets: int) -> ir.Value:
    """What scores get by the distance of query and key (Raffel et al., 2020), for ids (B, S): (1, N, S, S).

    Half of the buckets are for keys behind the query. In each half, the first half has a bucket a distance, the
    rest widen logarithmically up to a distance of 128.

    Args:
        nodes: where it is put.
        ids: has the length.
        table: a number for each bucket and head, (buckets, N).
        buckets: how many there are.
    """
    half, exact = buckets // 2, buckets // 4

    def number(label: str, value: float, dtype: type = np.int64) -> ir.Value:
        return nodes.constant(label, np.array(value, dtype))

    places = row(nodes, ids)
    first, second = (nodes.constant(f"axis_{axis}", np.array([axis], np.int64)) for axis in (0, 1))
    query, key = nodes.node("query", "Unsqueeze", [places, second]), nodes.node("key", "Unsqueeze", [places, first])
    behind = nodes.node("behind", "Sub", [query, key])
    after = nodes.node("after", "Less", [behind, number("here", 0)])
    after = nodes.node("after_as_number", "Cast", [after], to=ir.DataType.INT64.value)
    offset = nodes.node("offset", "Mul", [after, number("half", half)])
    distance = nodes.node("distance", "Abs", [behind])
    near = nodes.node("near", "Less", [distance, number("exact", exact)])
    # No logarithm of 0: the distances that are raised to the limit have a bucket of their own.
    far = nodes.node("far", "Max", [distance, number("limit", exact)])
    ratio = nodes.node("far_as_float", "Cast", [far], to=ir.DataType.FLOAT.value)
    ratio = nodes.node("ratio", "Div", [ratio, number("unit", exact, np.float32)])
    grown = nodes.node("log", "Log", [ratio])
    grown = nodes.node("share", "Div", [grown, number("range", np.log(_FARTHEST / exact), np.float32)])
    grown = nodes.node("grown", "Mul", [grown, number("wide", half - exact, np.float32)])
    bucket = nodes.node("whole", "Cast", [grown], to=ir.DataType.INT64.value)
    bucket = nodes.node("beyond", "Add", [bucket, number("first_wide", exact)])
    bucket = nodes.node("bounded", "Min", [bucket, number("last", half - 1)])
    bucket = nodes.node("in_half", "Where", [near, distance, bucket])
    found = nodes.node("by_place", "Gather", [table, nodes.node("bucket", "Add", [offset, bucket])], axis=0)
    return nodes.node("bias", "Unsqueeze", [nodes.node("by_head", "Transpose", [found], perm=[2, 0, 1]), first])


def relative_bias_array(length: int, table: np.ndarray) -> np.ndarray:
    """What :func:`relative_bias` gives."""
    half, exact = len(table) // 2, len(table) // 4
    behind = np.arange(length)[:, None] - np.arange(length)
    distance = np.abs(behind)
    ratio = np.maximum(distance, exact).astype(np.float32) / np.float32(exact)
    grown = np.log(ratio) / np.float32(np.log(_FARTHEST / exact)) * np.float32(half - exact)
    bucket = np.where(distance < exact, distance, np.minimum(grown.astype(np.int64) + exact, half - 1))
    return np.asarray(table[bucket + np.where(behind < 0, half, 0)].transpose(2, 0, 1)[None])
