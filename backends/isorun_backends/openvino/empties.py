"""What OpenVINO computes wrongly of inputs without elements: rows of the table in ``faults``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from isorun.plugin import EMPTY, Fault
from isorun_backends.common_empties import other_if_empty
from isorun_backends.nodes import Nodes, dtype_of, input_of, settled, shape_of
from isorun_backends.openvino.conditions import lengths
from isorun_backends.openvino.row import fault

if TYPE_CHECKING:
    import onnx_ir as ir

_RESULT = "memory that was never written"
# Of these, a scalar of 0 means the same, or other rows know better. So it does of reductions.
_READING = ("Compress", "Concat", "ConstantOfShape", "Expand", "Gather", "Reshape", "Resize")


def may_have_no_keys(node: ir.Node, _: int) -> bool:
    """Whether there may be queries and no keys, by what is known of the sequences, and no past."""
    past = input_of(node, 6 if node.domain else 4)
    if past is not None or input_of(node, 1) is None or input_of(node, 2) is None:
        return False
    queries, keys = lengths(node)
    if isinstance(keys, int) and keys > 0:
        return False
    return queries is None or queries != keys or getattr(queries, "value", None) is None


def gathers_nothing(node: ir.Node, _: int) -> bool:
    """Whether there are no indices or no elements, whatever is fed."""
    return any(value is not None and 0 in (shape_of(value) or ()) for value in node.inputs)


def selects_nothing(node: ir.Node, _: int) -> bool:
    """Whether all conditions are constants, and false."""
    conditions = settled(node.inputs[1])
    return conditions is not None and not conditions.any()


def expands_to_nothing(node: ir.Node, _: int) -> bool:
    """Whether a size to expand to is 0."""
    sizes = settled(node.inputs[1])
    return sizes is not None and 0 in sizes


def is_read_as_scalar(value: ir.Value, _: int) -> bool:
    """Whether it matters to what reads a constant that it has no elements."""
    readers = [reader.op_type for reader, _ in value.uses()]
    return value.is_graph_output() or not all(name in _READING or name.startswith("Reduce") for name in readers)


def zero_without_keys(op: Nodes, node: ir.Node) -> None:
    """The attention, or 0 if there are no keys; its other outputs as they are."""
    other_if_empty(op, node, node.inputs[1], op.constant(0, dtype_of(node.inputs[0], np.float32)))


def _row(operator: str, opset: int) -> Fault:
    heads = "num_heads = 2" if operator.startswith("com") else "q_num_heads = 2, kv_num_heads = 2"
    return fault(
        f"{operator} | queries without keys | {_RESULT}",
        "g (float[a, b, 4] q, float[c, d, 4] k, float[e, f, 4] v) => (float[g, h, 4] y) "
        f"{{ h = Softmax (q) s = Softmax <axis = 1> (h) t = ReduceSum <keepdims = 0> (s) p = Add (q, t) "
        f"o = {operator} <{heads}> (p, k, v) y = Neg (o) }}",  # the memory is that of a Softmax
        applies=may_have_no_keys,
        rewrite=zero_without_keys,
        opset=opset,
        feeds={"q": np.ones((1, 64, 4)), "k": np.zeros((1, 0, 4)), "v": np.zeros((1, 0, 4))},
        expected=[np.zeros((1, 64, 4))],
    )


ROWS = (
    _row("com.microsoft.MultiHeadAttention", 17),
    _row("Attention", 23),
    fault(
        "Gather | no elements or no indices, by their shapes | it ends the process, or another shape",
        "g (float[2, 3] x) => (float[a, b] y) <int64[0] i = {}> { y = Gather (x, i) }",
        applies=gathers_nothing,
        feeds={"x": np.ones((2, 3))},
        ends_process=True,
    ),
    *(
        fault(
            f"{operator} | targets without elements, by their shape, and weights | it ends the process",
            f"g (float[1, 2, 0] x, int64[1, 0] t) => (float[a, b] y) <float[2] w = {{1, 2}}> "
            f'{{ y = {operator} <reduction = "none"> (x, t, w) }}',
            applies=gathers_nothing,
            feeds={"x": np.ones((1, 2, 0)), "t": np.ones((1, 0))},
            ends_process=True,
        )
        for operator in ("NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss")
    ),
    fault(
        "Compress | constant conditions, none of which holds | it ends the process",
        "g (float[2, 3] x) => (float[a, b] y) <bool[2] c = {0, 0}> { y = Compress <axis = 0> (x, c) }",
        applies=selects_nothing,
        feeds={"x": np.ones((2, 3))},
        ends_process=True,
    ),
    fault(
        "Expand | a constant shape without elements | the input as it is",
        "g (float[1, 3] x) => (float[a, b] y) <int64[2] s = {0, 3}> { y = Expand (x, s) }",
        applies=expands_to_nothing,
        feeds={"x": np.ones((1, 3))},
    ),
    fault(
        f"{EMPTY} | read by operators other than reductions, Concat, ConstantOfShape, Expand, Reshape and Resize | "
        "a scalar of 0",
        "g (float[n, 1] x) => (float[a, b] y) <float[0] c = {}> { y = Add (x, c) }",
        applies=is_read_as_scalar,
        feeds={"x": np.ones((2, 1))},
    ),
    fault(
        f"GridSample | an empty image, in pools, Resize and RoiAlign too; heads of size 0 in Attention | {_RESULT}",
        "g (float[a, b, c, d] x, float[e, f, g, 2] p, float[l, m, n, o] q) => (float[h, i, j, k] y) "
        "{ h = Softmax (q) s = Softmax <axis = 2> (h) t = ReduceSum <keepdims = 0> (s) u = Add (p, t) "
        "o = GridSample (x, u) y = Neg (o) }",
        opset=19,
        feeds={"x": np.zeros((1, 1, 7, 0)), "p": np.zeros((1, 40, 40, 2)), "q": np.ones((1, 1, 40, 40))},
    ),
)
