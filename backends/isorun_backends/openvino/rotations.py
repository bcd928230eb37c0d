"""What OpenVINO takes for a rotation by position: rows of the table in ``faults``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from isorun_backends.nodes import Nodes, attribute_of, input_of, number, producer, shape_of, static
from isorun_backends.openvino.row import fault

if TYPE_CHECKING:
    import onnx_ir as ir

_END = 2**31 - 1
"""Where exporters end a slice at the end of an axis, or further."""
_RESHAPING = ("Cast", "Identity", "Reshape", "Squeeze", "Unsqueeze")


def joins_other_parts(node: ir.Node, _: int) -> bool:
    """Whether a negated part of a value and another part of it are joined, and are not known to be its second and its
    first half."""
    if len(node.inputs) != 2:
        return False
    values = (_negated(node), node.inputs[1])
    parts = [part for value in values if (part := producer(value, "Slice")) is not None]
    if len(parts) != 2 or parts[0].inputs[0] is not parts[1].inputs[0]:
        return False
    source, bounds = parts[0].inputs[0], [_bounds(part) for part in parts]
    if None in bounds:  # exporters compute the halves of a size
        (begin, end), (other_begin, other_end) = ([input_of(part, index) for index in (1, 2)] for part in parts)
        whole = static(other_begin) == [0] and (static(end) or [0]) >= [_END]
        return not (whole and _is_half_a_size(begin) and _is_half_a_size(other_end))
    width = (shape_of(source) or [None])[-1]
    if not isinstance(width, int):
        return True
    ranges = [range(width)[begin:end] for begin, end in filter(None, bounds)]
    return ranges != [range(width // 2, width), range(width // 2)] or width % 2 != 0


def negate_last(op: Nodes, node: ir.Node) -> ir.Value:
    """The whole is negated, of which the other part was before."""
    last = op("Neg", node.inputs[1])
    return op("Neg", op("Concat", _negated(node), last, **node.attributes))


def _negated(node: ir.Node) -> ir.Value | None:
    """What the first input is the negative of."""
    source = producer(input_of(node, 0), "Neg", "Mul")
    if source is None or source.op_type == "Neg":
        return None if source is None else source.inputs[0]
    pairs = (source.inputs, source.inputs[::-1])
    return next((value for factor, value in pairs if number(factor) == -1), None)


def _is_half_a_size(value: ir.Value | None) -> bool:
    """Whether a value is computed as the quotient of a size and 2."""
    quotient = producer(_origin(value, *_RESHAPING), "Div")
    if quotient is None or static(quotient.inputs[1]) != [2]:
        return False
    return producer(_origin(quotient.inputs[0], *_RESHAPING, "Gather"), "Shape") is not None


def _origin(value: ir.Value | None, *kinds: str) -> ir.Value | None:
    """What a value is computed from by nodes of some kinds, from their first inputs."""
    while (node := producer(value, *kinds)) is not None:
        value = node.inputs[0]
    return value


def _bounds(part: ir.Node) -> tuple[int, int] | None:
    """Where a slice begins and ends, if it has one axis; ``None`` if that is not known."""
    begin, end = (
        attribute_of(part, name) or static(input_of(part, index)) for index, name in ((1, "starts"), (2, "ends"))
    )
    if begin is None or end is None or len(begin) != 1 or len(end) != 1:
        return None
    step = static(input_of(part, 4)) or [1]
    return (int(begin[0]), int(end[0])) if step == [1] else (0, 0)


ROWS = (
    fault(
        "Concat | a negated part of a value and another part, which are not its second and its first half | "
        "a rotation by halves; for parts of unequal size, memory that was never written",
        "g (float[N, 2, 3, 4] x, float[1, 1, 3, 4] c, float[1, 1, 3, 4] s) => (float[N, 2, 3, 4] y) "
        "<int64[1] begin = {0}, int64[1] half = {2}, int64[1] end = {4}, int64[1] last = {3}> { "
        "a = Slice (x, begin, half, last) b = Slice (x, half, end, last) n = Neg (a) h = Concat <axis = -1> (n, b) "
        "p = Mul (x, c) q = Mul (h, s) y = Add (p, q) }",
        applies=joins_other_parts,
        rewrite=negate_last,
        feeds={"x": np.arange(24).reshape(1, 2, 3, 4), "c": np.ones((1, 1, 3, 4)), "s": np.ones((1, 1, 3, 4))},
    ),
)
