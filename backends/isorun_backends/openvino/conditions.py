"""When OpenVINO computes a node wrongly, by its attributes and what is statically known of its inputs.

A condition that may hold counts as one that holds: a wrong number is worse than a refusal.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from isorun_backends import common_faults
from isorun_backends.nodes import (
    Condition,
    array_of,
    attribute_of,
    input_of,
    is_constant,
    is_fixed,
    is_small,
    kind_of,
    producer,
    shape_of,
    static,
)

if TYPE_CHECKING:
    import onnx_ir as ir

_VIEWS = ("Cast", "Concat", "Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze")  # the values of their inputs
_SELECTIONS = ("Gather", "ReduceMax", "ReduceMin", "Slice", "Split")
_OF_SIZES = ("Add", "Div", "Max", "Min", "Mul")  # not negative if no input is
_HELD = 2**24  # fp32 holds every integer below
_HARMLESS = (2**63 - 1, -(2**63) + 1, -(2**63))  # "no limit": saturated to 32 bits, they still mean that


def is_float(node: ir.Node, _: int) -> bool:
    """Whether the elements are floats, or of an unknown type."""
    value = input_of(node, 0)
    return value is None or value.dtype is None or value.dtype.is_floating_point()


def is_known_float(node: ir.Node, _: int) -> bool:
    """Whether the elements are known to be floats: the equivalent has constants of their type."""
    value = input_of(node, 0)
    return value is not None and value.dtype is not None and value.dtype.is_floating_point()


def is_integer(node: ir.Node, _: int) -> bool:
    """Whether the elements are integers."""
    value = input_of(node, 0)
    return value is not None and value.dtype is not None and value.dtype.is_integer()


def compares_large_integers(node: ir.Node, _: int) -> bool:
    """Whether integers of 32 or 64 bits are compared, and fp32 may hold neither side: with one that it holds, the order
    is right."""
    if not is_integer(node, 0) or input_of(node, 0).dtype.itemsize < 4:  # type: ignore[union-attr]
        return False
    return not any(is_small(value, _HELD) for value in node.inputs)


def is_absolute_of_fixed(node: ir.Node, _: int) -> bool:
    """Whether signed numbers, or a part of them, are computed from constants and sizes alone."""
    kind = None if node.inputs[0] is None else node.inputs[0].dtype
    if kind is None or not kind.is_signed():
        return False
    waiting = list(node.inputs)
    while waiting:
        value = waiting.pop()
        source = producer(value)
        if value is None or source is None or source.op_type == "Constant":
            continue
        if is_fixed(value):
            return True
        if source.op_type in _VIEWS:
            waiting += source.inputs
    return False


def divides_negative_fixed(node: ir.Node, _: int) -> bool:
    """Whether integers, of which one may be negative, are computed from constants and sizes alone."""
    values = [value for value in node.inputs if value is not None]
    return is_integer(node, 0) and all(map(is_fixed, values)) and any(map(_may_be_negative, values))


def _may_be_negative(value: ir.Value) -> bool:
    source, numbers = producer(value), array_of(value)
    if numbers is not None:
        return bool((numbers < 0).any())
    if source is None or source.op_type in ("Shape", "Size"):
        return source is None
    if source.op_type not in (*_VIEWS, *_SELECTIONS, *_OF_SIZES):
        return True
    read = source.inputs if source.op_type in ("Concat", *_OF_SIZES) else source.inputs[:1]
    return any(_may_be_negative(part) for part in read if part is not None)


def reduces_nothing(node: ir.Node, _: int) -> bool:
    """Whether there may be no axes, which means none rather than all."""
    axes = input_of(node, 1)
    if not attribute_of(node, "noop_with_empty_axes", 0):
        return False
    size = 0 if axes is None else len(static(axes) or ()) or (shape_of(axes) or [0])[0]
    return not isinstance(size, int) or size == 0


def pads_with_computed_value(node: ir.Node, _: int) -> bool:
    """Whether the value is not a constant, and may be of another type than float32."""
    value = input_of(node, 2)
    return value is not None and not is_constant(value) and kind_of(value) != "FLOAT"


def may_be_empty(index: int) -> Condition:
    """Whether a size that is an input may be 0."""

    def applies(node: ir.Node, _: int) -> bool:
        value = input_of(node, index)
        sizes = static(value)
        return value is not None and (sizes is None or 0 in sizes)

    return applies


def computes_input(index: int) -> Condition:
    """Whether an input is there, and no constant."""
    return lambda node, _: input_of(node, index) is not None and not is_constant(input_of(node, index))


def selects_beyond(node: ir.Node, _: int) -> bool:
    """Whether an element is selected that the sequence may not have, other than the first or the last."""
    construct, place = producer(input_of(node, 0), "SequenceConstruct"), static(input_of(node, 1))
    if place in ([0], [-1]):
        return False
    if place is None or construct is None:
        return True
    return not -len(construct.inputs) <= place[0] < len(construct.inputs)


def ignores_lengths(node: ir.Node, opset: int) -> bool:
    """Whether there are lengths of rows, and a length or a batch that is not fixed."""
    sizes = shape_of(input_of(node, 0))
    is_fixed = sizes is not None and all(isinstance(size, int) for size in sizes[:2])
    return not is_fixed and common_faults.ignores_lengths(node, opset)


def same_size(node: ir.Node, _: int) -> bool:
    """Whether the padding follows from the size of the output."""
    return str(attribute_of(node, "auto_pad", "NOTSET")).startswith("SAME")


def slopes_by_one_axis(node: ir.Node, _: int) -> bool:
    """Whether the slope may have one dimension of several elements, and what it multiplies more than two."""
    sizes, slopes = map(shape_of, node.inputs)
    return (slopes is None or (len(slopes) == 1 and slopes[0] != 1)) and (sizes is None or len(sizes) > 2)


def tiles_many_axes(node: ir.Node, _: int) -> bool:
    """Whether repeats of three or more axes are computed."""
    sizes = shape_of(input_of(node, 1)) or ()
    return static(input_of(node, 1)) is None and len(sizes) == 1 and isinstance(sizes[0], int) and sizes[0] > 2


def dft_axis(node: ir.Node, opset: int) -> bool:
    """Whether the axis is not known to be 1."""
    if opset < 20:
        return False
    (axis,) = [-2] if input_of(node, 2) is None else static(input_of(node, 2)) or [0]
    if axis < 0:
        axis += len(shape_of(input_of(node, 0)) or ())
    return bool(axis != 1)


def windowed(node: ir.Node, _: int) -> bool:
    """Whether attention is local."""
    return any(attribute_of(node, f"{side}_window_size", -1) not in (-1, None) for side in ("left", "right"))


def lengths(node: ir.Node) -> tuple[Any, Any]:
    """The numbers of queries and of keys of an attention, as far as they are known."""
    queries, keys = (None if sizes is None else sizes[-2] for sizes in map(shape_of, node.inputs[:2]))
    return queries, keys


def causal_with_past(node: ir.Node, _: int) -> bool:
    """Whether there is a past, and not known to be a query for each new key."""
    if not attribute_of(node, "is_causal", 0) or input_of(node, 4) is None:
        return False
    queries, keys = lengths(node)
    return queries is None or queries != keys


def pools_beyond(node: ir.Node, _: int) -> bool:
    """Whether a last window can begin in the padding, where ONNX drops it."""
    kernel = list(attribute_of(node, "kernel_shape", ()))
    if not attribute_of(node, "ceil_mode", 0):
        return False
    ones, zeros = [1] * len(kernel), [0] * 2 * len(kernel)
    strides, dilations = attribute_of(node, "strides", ones), attribute_of(node, "dilations", ones)
    pads, sizes = attribute_of(node, "pads", zeros), shape_of(input_of(node, 0))
    for axis, size in enumerate(kernel):
        extent, stride, end = (size - 1) * dilations[axis] + 1, strides[axis], pads[len(kernel) + axis]
        if end + stride - 1 < extent:
            continue
        length = None if sizes is None else sizes[2 + axis]
        if not isinstance(length, int):
            return True
        last = -(-(length + pads[axis] + end - extent) // stride) * stride
        if last >= length + pads[axis]:
            return True
    return False


def shifts_wrongly(node: ir.Node, _: int) -> bool:
    """Whether the integers are signed, or of 8 bits, or both inputs are scalars."""
    value = input_of(node, 0)
    if value is None or value.dtype is None or value.dtype.is_signed() or value.dtype.itemsize == 1:
        return True
    return all(shape_of(read) == [] for read in node.inputs)


def number_beyond_32_bits(value: ir.Value, _: int) -> bool:
    """Not the extremes that mean "no limit", and not numbers that only slices and conversions to floats read."""
    import onnx_ir as ir

    array = array_of(value)
    numbers = [] if array is None else [int(number) for number in np.unique(array)]
    wide = [number for number in numbers if not -(2**31) <= number < 2**31 and number not in _HARMLESS]
    if not wide and numbers:
        return False
    uses = list(value.uses())
    harmless = [
        (use.node.op_type == "Slice" and use.idx in (1, 2))
        or (use.node.op_type == "Cast" and not ir.DataType(use.node.attributes["to"].as_int()).is_integer())
        for use in uses
    ]
    return value.is_graph_output() or not uses or not all(harmless)


def returns_indices(node: ir.Node, _: int) -> bool:
    """Whether a pool returns where its maxima are."""
    return len(node.outputs) > 1
