"""Equivalents of nodes that OpenVINO computes wrongly. Each returns the new nodes, in order."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from isorun_backends.nodes import attribute_of, constant, new_node

if TYPE_CHECKING:
    import onnx_ir as ir


def reduce_l1(node: ir.Node) -> list[ir.Node]:
    """The sum of absolute values."""
    absolute = new_node("Abs", [node.inputs[0]])
    return [absolute, *_sum(node, absolute.outputs[0])]


def reduce_l2(node: ir.Node) -> list[ir.Node]:
    """The root of the sum of squares."""
    square = new_node("Mul", [node.inputs[0], node.inputs[0]])
    nodes = [square, *_sum(node, square.outputs[0])]
    return [*nodes, new_node("Sqrt", [nodes[-1].outputs[0]])]


def reduce_log_sum(node: ir.Node) -> list[ir.Node]:
    """The logarithm of the sum."""
    nodes = _sum(node, node.inputs[0])
    return [*nodes, new_node("Log", [nodes[-1].outputs[0]])]


def reduce_log_sum_exp(node: ir.Node) -> list[ir.Node]:
    """The maximum is subtracted first. It is clipped to finite numbers, since the difference of infinities is NaN."""
    x = node.inputs[0]
    attributes = _attributes(node)
    finite = np.finfo(_float_type(x))
    lowest, highest = constant(finite.min), constant(finite.max)
    largest = new_node("ReduceMax", [x], {**attributes, "keepdims": 1})
    clipped = new_node("Clip", [largest.outputs[0], lowest.outputs[0], highest.outputs[0]])
    shifted = new_node("Sub", [x, clipped.outputs[0]])
    powers = new_node("Exp", [shifted.outputs[0]])
    total = _sum(node, powers.outputs[0])
    logarithm = new_node("Log", [total[-1].outputs[0]])
    nodes = [lowest, highest, largest, clipped, shifted, powers, *total, logarithm]
    back = clipped.outputs[0]
    if not attributes.get("keepdims", 1):
        if axes := attributes.get("axes"):
            shape = constant(np.array(axes, np.int64))
            squeezed = new_node("Squeeze", [back, shape.outputs[0]])
            nodes += [shape, squeezed]
        else:
            squeezed = new_node("Squeeze", [back])
            nodes.append(squeezed)
        back = squeezed.outputs[0]
    return [*nodes, new_node("Add", [logarithm.outputs[0], back])]


def identity(node: ir.Node) -> list[ir.Node]:
    """What broadcasting to the shape of a scalar does."""
    return [new_node("Identity", [node.inputs[0]])]


def infinite_extremum(node: ir.Node) -> list[ir.Node]:
    """The reduction, replaced by the infinity where every element is one; also where there is none."""
    x = node.inputs[0]
    infinity = constant(np.array(-np.inf if node.op_type == "ReduceMax" else np.inf, _float_type(x)))
    extremum = new_node(node.op_type, node.inputs, _attributes(node))
    equal = new_node("Equal", [x, infinity.outputs[0]])
    number = new_node("Cast", [equal.outputs[0]], {"to": 6})  # int32
    every = new_node("ReduceMin", [number.outputs[0], *node.inputs[1:]], _attributes(node))
    condition = new_node("Cast", [every.outputs[0]], {"to": 9})  # bool
    chosen = new_node("Where", [condition.outputs[0], infinity.outputs[0], extremum.outputs[0]])
    return [infinity, extremum, equal, number, every, condition, chosen]


def tile_by_axis(node: ir.Node) -> list[ir.Node]:
    """One axis at a time."""
    repeats, value = node.inputs[1], node.inputs[0]
    assert repeats is not None
    assert repeats.shape is not None
    rank = repeats.shape[0]
    assert isinstance(rank, int)
    ones = constant(np.ones(rank, np.int64))
    nodes = [ones]
    for axis in range(rank):
        chosen = constant(np.arange(rank) == axis)
        single = new_node("Where", [chosen.outputs[0], repeats, ones.outputs[0]])
        tiled = new_node("Tile", [value, single.outputs[0]])
        nodes += [chosen, single, tiled]
        value = tiled.outputs[0]
    return nodes


def byte_arithmetic(node: ir.Node) -> list[ir.Node]:
    """The operation in 32 bits. Of the result, the lower 8 bits are kept."""
    kind = node.inputs[0].dtype  # type: ignore[union-attr]
    assert kind is not None
    offset, size = (constant(np.array(number, np.int32)) for number in (128 if kind.is_signed() else 0, 256))
    wide = [new_node("Cast", [value], {"to": 6}) for value in node.inputs]
    result = new_node(node.op_type, [cast.outputs[0] for cast in wide])
    above = new_node("Add", [result.outputs[0], offset.outputs[0]])
    lower = new_node("Mod", [above.outputs[0], size.outputs[0]])
    below = new_node("Sub", [lower.outputs[0], offset.outputs[0]])
    narrow = new_node("Cast", [below.outputs[0]], {"to": int(kind)})
    return [offset, size, *wide, result, above, lower, below, narrow]


def comparison(swapped: str) -> Callable[[ir.Node], list[ir.Node]]:
    """The opposite comparison of swapped inputs."""
    return lambda node: [new_node(swapped, [node.inputs[1], node.inputs[0]])]


def is_not_zero(node: ir.Node) -> list[ir.Node]:
    """Every number but zero is true, NaN too."""
    zero = constant(np.array(0, _float_type(node.inputs[0])))
    equal = new_node("Equal", [node.inputs[0], zero.outputs[0]])
    return [zero, equal, new_node("Not", [equal.outputs[0]])]


def fmod(node: ir.Node) -> list[ir.Node]:
    """The dividend, where only the divisor is infinite."""
    infinity = constant(np.array(np.inf, _float_type(node.inputs[0])))
    remainder = new_node("Mod", node.inputs, _attributes(node))
    sizes = [new_node("Abs", [value]) for value in node.inputs]
    infinite = [new_node("Equal", [size.outputs[0], infinity.outputs[0]]) for size in sizes]
    finite = new_node("Not", [infinite[0].outputs[0]])
    kept = new_node("And", [finite.outputs[0], infinite[1].outputs[0]])
    chosen = new_node("Where", [kept.outputs[0], node.inputs[0], remainder.outputs[0]])
    return [infinity, remainder, *sizes, *infinite, finite, kept, chosen]


def shrink(node: ir.Node) -> list[ir.Node]:
    """Where instead of products with zero, which are NaN for infinities."""
    x, kind = node.inputs[0], _float_type(node.inputs[0])
    limit, bias = (_attributes(node).get(name, default) for name, default in (("lambd", 0.5), ("bias", 0.0)))
    low, high, shift, zero = (constant(np.array(number, kind)) for number in (-limit, limit, bias, 0))
    below, above = new_node("Less", [x, low.outputs[0]]), new_node("Less", [high.outputs[0], x])
    added, taken = new_node("Add", [x, shift.outputs[0]]), new_node("Sub", [x, shift.outputs[0]])
    upper = new_node("Where", [above.outputs[0], taken.outputs[0], zero.outputs[0]])
    chosen = new_node("Where", [below.outputs[0], added.outputs[0], upper.outputs[0]])
    return [low, high, shift, zero, below, above, added, taken, upper, chosen]


def range_towards(node: ir.Node) -> list[ir.Node]:
    """The same with the start as its limit, where the step leads away from the limit: their signs differ."""
    start, limit, delta = node.inputs
    distance = new_node("Sub", [limit, start])
    zero = new_node("Sub", [start, start])
    ahead, forward = (new_node("Less", [zero.outputs[0], value]) for value in (distance.outputs[0], delta))
    towards = new_node("Equal", [ahead.outputs[0], forward.outputs[0]])
    end = new_node("Where", [towards.outputs[0], limit, start])
    return [distance, zero, ahead, forward, towards, end, new_node("Range", [start, end.outputs[0], delta])]


def integer_comparison(node: ir.Node) -> list[ir.Node]:
    """By the sign of the difference, where the nearest numbers in fp32 are equal: it is exact there."""
    x, z = node.inputs
    assert x is not None
    assert x.dtype is not None
    zero, difference = constant(np.array(0, x.dtype.numpy())), new_node("Sub", [x, z])
    of_difference = new_node(node.op_type, [difference.outputs[0], zero.outputs[0]])
    if node.op_type == "Equal":
        return [zero, difference, of_difference]
    apart = new_node(node.op_type.removesuffix("OrEqual"), [x, z])
    near = new_node("Equal", [x, z])
    exact = new_node("And", [near.outputs[0], of_difference.outputs[0]])
    either = new_node("Or", [apart.outputs[0], exact.outputs[0]])
    return [zero, difference, of_difference, apart, near, exact, either]


def integer_relu(node: ir.Node) -> list[ir.Node]:
    """A selection, which is exact: the sign of an integer is that of its nearest number in fp32."""
    x = node.inputs[0]
    assert x is not None
    assert x.dtype is not None
    zero = constant(np.array(0, x.dtype.numpy()))
    below = new_node("Less", [x, zero.outputs[0]])
    return [zero, below, new_node("Where", [below.outputs[0], zero.outputs[0], x])]


def compress_rows(node: ir.Node) -> list[ir.Node]:
    """The conditions of as many rows as there are, as in ONNX Runtime."""
    x, conditions = node.inputs
    axis, first = attribute_of(node, "axis"), constant(np.array([0]))
    if axis is None:
        nodes = [new_node("Size", [x])]
    else:
        index, shape = constant(np.array(axis)), new_node("Shape", [x])
        nodes = [index, shape, new_node("Gather", [shape.outputs[0], index.outputs[0]])]
    vector = constant(np.array([1]))
    count = new_node("Reshape", [nodes[-1].outputs[0], vector.outputs[0]])
    kept = new_node("Slice", [conditions, first.outputs[0], count.outputs[0]])
    return [first, *nodes, vector, count, kept, new_node("Compress", [x, kept.outputs[0]], _attributes(node))]


def window_of_size(node: ir.Node) -> list[ir.Node]:
    """The window, with no elements for a negative size."""
    size = node.inputs[0]
    assert size is not None
    zero = constant(np.array(0, np.int64 if size.dtype is None else size.dtype.numpy()))
    below = new_node("Less", [size, zero.outputs[0]])
    limit = new_node("Where", [below.outputs[0], zero.outputs[0], size])
    return [zero, below, limit, new_node(node.op_type, limit.outputs, _attributes(node))]


def split_into_sizes(node: ir.Node) -> list[ir.Node]:
    """The parts of sizes of which negative ones are too large, which is an error."""
    import onnx_ir as ir

    x, sizes = node.inputs
    zero, large = constant(np.array(0)), constant(np.array(2**30))
    below = new_node("Less", [sizes, zero.outputs[0]])
    checked = new_node("Where", [below.outputs[0], large.outputs[0], sizes])
    parts = ir.node("Split", [x, checked.outputs[0]], node.attributes, num_outputs=len(node.outputs))
    return [zero, large, below, checked, parts]


def thresholded_relu(node: ir.Node) -> list[ir.Node]:
    """Where instead of a product with zero, which is NaN for infinities."""
    x, kind = node.inputs[0], _float_type(node.inputs[0])
    alpha, zero = (constant(np.array(number, kind)) for number in (_attributes(node).get("alpha", 1.0), 0))
    above = new_node("Less", [alpha.outputs[0], x])
    return [alpha, zero, above, new_node("Where", [above.outputs[0], x, zero.outputs[0]])]


def _sum(node: ir.Node, value: ir.Value | None) -> list[ir.Node]:
    """ReduceSum over the axes of a reduction: an attribute in opsets 13 to 17, then an input."""
    attributes = {name: item for name, item in _attributes(node).items() if name != "axes"}
    if "axes" not in node.attributes:
        return [new_node("ReduceSum", [value, *node.inputs[1:]], attributes)]
    axes = constant(np.array(node.attributes["axes"].as_ints(), np.int64))
    return [axes, new_node("ReduceSum", [value, axes.outputs[0]], attributes)]


def _attributes(node: ir.Node) -> dict[str, Any]:
    return {name: attribute.value for name, attribute in node.attributes.items()}


def _float_type(value: ir.Value | None) -> Any:
    name = None if value is None or value.dtype is None else value.dtype.numpy().name
    return np.dtype(name if name in ("float16", "float64") else "float32")
