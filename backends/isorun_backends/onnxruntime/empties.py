"""What ONNX Runtime's CPU provider computes wrongly of sizes of 0: rows of the table in ``faults``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from isorun.plugin import Fault
from isorun_backends.common_empties import recurrent_of_nothing
from isorun_backends.nodes import attribute_of, branch, constant, input_of, new_node, static

if TYPE_CHECKING:
    import onnx_ir as ir

_VERSIONS = "1.31.1"


def has_negative_axis(node: ir.Node, _: int) -> bool:
    """Whether the axis counts from the end, of a tensor that may be empty."""
    x = node.inputs[0]
    if attribute_of(node, "axis", 0) >= 0 or x is None or x.shape is None:
        return False
    return not all(isinstance(size, int) and size > 0 for size in x.shape)


def count_from_start(node: ir.Node) -> list[ir.Node]:
    """The same axis, counted from the start."""
    x = node.inputs[0]
    assert x is not None
    assert x.shape is not None
    attributes = {name: attribute.value for name, attribute in node.attributes.items()}
    attributes["axis"] += len(x.shape)
    return [new_node(node.op_type, [x], attributes)]


def may_have_no_terms(node: ir.Node, _: int) -> bool:
    """Whether the sums of a product may have no terms, and there may be such sums."""
    left, right = (None if value is None or value.shape is None else list(value.shape) for value in node.inputs[:2])
    inner = [shape[axis] for shape, axis in ((left, -1), (right, -2)) if shape and len(shape) >= -axis]
    if any(isinstance(size, int) and size > 0 for size in inner):
        return False
    outer = [*(left or ())[:-1], *(right or ())[:-2], *(right or ())[-1:]]
    return not any(size in outer for size in inner if size is not None and not isinstance(size, int) and size.value)


def zero_without_terms(node: ir.Node) -> list[ir.Node]:
    """The product, or 0 if an input is empty."""
    product = new_node(node.op_type, node.inputs)
    count, none, zero = new_node("Size", [node.inputs[0]]), constant(0), constant(np.array(0, np.int32))
    is_empty = new_node("Equal", [count.outputs[0], none.outputs[0]])
    chosen = new_node("Where", [is_empty.outputs[0], zero.outputs[0], product.outputs[0]])
    return [product, count, none, zero, is_empty, chosen]


def may_have_no_frame(node: ir.Node, _: int) -> bool:
    """Whether the length of a frame may be 0."""
    length, window = static(input_of(node, 3)), input_of(node, 2)
    if length is not None:
        return bool(length[0] == 0)
    size = None if window is None or window.shape is None else window.shape[0]
    return input_of(node, 3) is not None or not isinstance(size, int) or size == 0


def require_frame(node: ir.Node) -> list[ir.Node]:
    """The transform, with a length above that of every signal for 0: an error."""
    length, nodes = input_of(node, 3), []
    if length is None:
        nodes.append(new_node("Size", [input_of(node, 2)]))
        length = nodes[0].outputs[0]
    kind = np.int64 if length.dtype is None else length.dtype.numpy()
    one, large = constant(np.array(1, kind)), constant(np.array(2**31 - 1, kind))
    below = new_node("Less", [length, one.outputs[0]])
    checked = new_node("Where", [below.outputs[0], large.outputs[0], length])
    inputs = [node.inputs[0], node.inputs[1], input_of(node, 2), checked.outputs[0]]
    return [*nodes, one, large, below, checked, new_node(node.op_type, inputs, node.attributes)]


def may_have_no_heads(node: ir.Node, _: int) -> bool:
    """Whether a number of heads is an unknown size, and there is one output."""
    if attribute_of(node, "q_num_heads") or sum(bool(output.name) for output in node.outputs) > 1:
        return False
    shapes = [None if value is None or value.shape is None else list(value.shape) for value in node.inputs[:2]]
    return any(shape is not None and len(shape) == 4 and not isinstance(shape[1], int) for shape in shapes)


def unless_no_heads(node: ir.Node) -> list[ir.Node]:
    """The attention, or an empty result."""
    import onnx_ir as ir

    q, k, v = node.inputs[:3]
    assert q is not None
    prefix, kind = node.outputs[0].name, ir.DataType.FLOAT if q.dtype is None else q.dtype
    one, none = constant([1]), constant([0])
    shapes = [new_node("Shape", [value]) for value in (q, k)]
    heads = [new_node("Gather", [shape.outputs[0], one.outputs[0]]) for shape in shapes]
    both = new_node("Mul", [size.outputs[0] for size in heads])
    is_empty = new_node("Equal", [both.outputs[0], none.outputs[0]])
    start, last = constant([0, 1, 2]), constant([3])
    sizes = [
        new_node("Gather", [shapes[0].outputs[0], start.outputs[0]]),
        (of_v := new_node("Shape", [v])),
        new_node("Gather", [of_v.outputs[0], last.outputs[0]]),
    ]
    shape = new_node("Concat", [sizes[0].outputs[0], sizes[2].outputs[0]], {"axis": 0})
    zeros = new_node("ConstantOfShape", shape.outputs, {"value": ir.tensor(np.zeros(1, kind.numpy()))})
    layer = ir.node(node.op_type, node.inputs, node.attributes, num_outputs=1)
    for value in (zeros.outputs[0], layer.outputs[0]):
        value.type = ir.TensorType(kind)
    branches = {
        "then_branch": branch(f"{prefix}.nothing", [start, last, *sizes, shape, zeros], zeros.outputs),
        "else_branch": branch(f"{prefix}.some", [layer], layer.outputs),
    }
    chosen = ir.node("If", is_empty.outputs, branches, num_outputs=len(node.outputs))
    return [one, none, *shapes, *heads, both, is_empty, chosen]


def _extremum(operator: str) -> Fault:
    return Fault(
        operator=operator,
        condition="a negative axis of a tensor without elements",
        result="an output that keeps the size of the axis",
        versions=_VERSIONS,
        applies=has_negative_axis,
        rewrite=count_from_start,
        model=f"g (float[a, b] x) => (int64[c, d] y) {{ y = {operator} <axis = -1> (x) }}",
        feeds={"x": np.zeros((0, 5), np.float32)},
        expected=[np.zeros((0, 1), np.int64)],
    )


def _ending(operator: str, condition: str, applies: Any, rewrite: Any, model: str, **fields: Any) -> Fault:
    return Fault(
        operator=operator,
        condition=condition,
        result="it ends the process",
        versions=_VERSIONS,
        applies=applies,
        rewrite=rewrite,
        model=model,
        ends_process=True,
        **fields,
    )


ROWS = (
    *(recurrent_of_nothing(operator, _VERSIONS) for operator in ("LSTM", "GRU")),
    *map(_extremum, ("ArgMax", "ArgMin")),
    Fault(
        operator="MatMulInteger",
        condition="sums without terms",
        result="memory that was never written",
        versions=_VERSIONS,
        applies=may_have_no_terms,
        rewrite=zero_without_terms,
        # The sizes of the first product are those of the second, whose memory it leaves
        model=(
            "g (uint8[a, b] x, uint8[b, c] w, uint8[a, d] z, uint8[d, c] u) => (int32[e, f] y, int32[g, h] v) "
            "{ v = MatMulInteger (x, w) n = Shape (v) y = MatMulInteger (z, u) }"
        ),
        feeds={
            "x": np.full((40, 9), 5, np.uint8),
            "w": np.full((9, 40), 5, np.uint8),
            "z": np.zeros((40, 0), np.uint8),
            "u": np.zeros((0, 40), np.uint8),
        },
        expected=[np.zeros((40, 40), np.int32), np.full((40, 40), 225, np.int32)],
    ),
    _ending(
        *("STFT", "frames of a computed length of 0", may_have_no_frame, require_frame),
        "g (float[a, b, 1] x, int64 n) => (float[c, d, e, 2] y) <int64 s = {4}> { y = STFT (x, s, , n) }",
        feeds={"x": np.ones((1, 16, 1), np.float32), "n": np.array(0)},
        expected=[],
        invalid=True,
    ),
    _ending(
        *("Attention", "a number of heads that is unknown, and 0", may_have_no_heads, unless_no_heads),
        "g (float[a, b, c, 4] q) => (float[d, e, f, g] y) { y = Attention (q, q, q) }",
        opset=23,
        feeds={"q": np.zeros((1, 0, 3, 4), np.float32)},
        expected=[np.zeros((1, 0, 3, 4), np.float32)],
    ),
)
