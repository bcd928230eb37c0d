"""What ONNX Runtime's optimizers make of a ``Pad`` before a pool: rows of the table in ``faults``.

They add it to the pads of the pool, with which a maximum ignores the padding, and a window that would begin in it is
dropped or an error.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from isorun.plugin import Fault
from isorun_backends.nodes import Nodes, attribute_of, input_of, is_constant, producer, settled, static
from isorun_backends.onnxruntime.row import fault_before_1_32

if TYPE_CHECKING:
    import onnx_ir as ir

_DEEPEST = 8  # nodes from a pool to what is padded
# What an optimizer may remove between the two.
_REMOVABLE = frozenset(
    (
        *("Add", "Cast", "Div", "Dropout", "Identity", "Mul", "Pad", "Reshape", "Slice", "Squeeze", "Sub"),
        *("Transpose", "Unsqueeze"),
    )
)
_NEVER_NEGATIVE = frozenset(("Abs", "Exp", "HardSigmoid", "Relu", "Sigmoid", "Softmax", "Softplus", "Sqrt"))
# What of inputs that are never negative is not either.
_KEEPING = frozenset(
    (
        *("Add", "AveragePool", "Cast", "Concat", "Dropout", "Expand", "Flatten", "GlobalAveragePool"),
        *("GlobalMaxPool", "Identity", "Max", "MaxPool", "Mul", "Transpose"),
    )
)
# These have inputs beside the values.
_KEEPING_FIRST = frozenset(("Gather", "Reshape", "Slice", "Split", "Squeeze", "Tile", "Unsqueeze"))


def is_maximum_of_padded(node: ir.Node, _: int) -> bool:
    """Whether values that may be negative are padded before their maximum, or some window may differ."""
    pad = _pad_before(node)
    if pad is None:
        return False
    return _moves_windows(node, pad) or not _is_never_negative(input_of(pad, 0), _DEEPEST)


def is_mean_of_padded(node: ir.Node, _: int) -> bool:
    """Whether values are padded before their mean, and some window may differ."""
    pad = _pad_before(node)
    return pad is not None and _moves_windows(node, pad)


def keep_pad(op: Nodes, node: ir.Node) -> Sequence[ir.Value]:
    """The pool of a copy, which no optimizer removes."""
    return op.like(node, op("Concat", node.inputs[0], axis=0))


def _pad_before(node: ir.Node) -> ir.Node | None:
    """The nearest Pad with zeros that an optimizer could add to the pads of a pool."""
    if attribute_of(node, "auto_pad", "NOTSET") != "NOTSET":
        return None
    value = node.inputs[0]
    for _ in range(_DEEPEST):
        source = producer(value, *_REMOVABLE)
        if source is None:
            return None
        if source.op_type == "Pad" and attribute_of(source, "mode", "constant") == "constant":
            return source if _pads_with_zero(source) else None
        value = next((part for part in source.inputs if not is_constant(part)), None)
    return None


def _pads_with_zero(pad: ir.Node) -> bool:
    padding = static(input_of(pad, 2))
    return attribute_of(pad, "value", 0.0) == 0 and (padding is None or padding == [0])


def _moves_windows(node: ir.Node, pad: ir.Node) -> bool:
    """Whether a window may lie in the padding alone, or the last one begins there."""
    if attribute_of(node, "ceil_mode", 0):
        return True
    kernel, pads = attribute_of(node, "kernel_shape"), attribute_of(pad, "pads") or static(input_of(pad, 1))
    if pads is None or input_of(pad, 3) is not None or len(pads) != 2 * len(kernel) + 4:
        return True
    half = len(pads) // 2
    own = attribute_of(node, "pads", [0] * 2 * len(kernel))
    total = [added + declared for added, declared in zip([*pads[2:half], *pads[half + 2 :]], own, strict=True)]
    return any(size >= extent for size, extent in zip(total, [*kernel, *kernel], strict=True))


def _is_never_negative(value: ir.Value | None, steps: int) -> bool:
    """Whether no number is negative, by the nodes that compute it."""
    if value is None or not steps:
        return False
    if value.dtype is not None and value.dtype.is_integer() and not value.dtype.is_signed():
        return True
    if (numbers := settled(value)) is not None:
        return bool((numbers >= 0).all())
    node = value.producer()
    if node is None:
        return False
    if node.op_type == "Clip":
        lowest = attribute_of(node, "min") if len(node.inputs) < 2 else settled(node.inputs[1])
        return bool(lowest is not None and lowest >= 0)
    if node.op_type in _NEVER_NEGATIVE:
        return True
    read = node.inputs[:1] if node.op_type in _KEEPING_FIRST else node.inputs
    return node.op_type in _KEEPING | _KEEPING_FIRST and all(_is_never_negative(part, steps - 1) for part in read)


def _row(operator: str, condition: str, result: str, applies: Any, attributes: str) -> Fault:
    return fault_before_1_32(
        f"{operator} | {condition} | {result}",
        "g (float[1, 1, h, w] x) => (float[1, 1, i, j] y) <int64[8] p = {0, 0, 1, 1, 0, 0, 1, 1}> "
        f"{{ q = Pad (x, p) y = {operator} <{attributes}, strides = [2, 2]> (q) }}",
        applies=applies,
        rewrite=keep_pad,
        opset=19,
        feeds={"x": -np.arange(1, 10).reshape(1, 1, 3, 3)},
    )


ROWS = (
    _row(
        "MaxPool",
        "after a Pad with zeros, of values that may be negative, with `ceil_mode` = 1 or with windows in the padding",
        "the maximum without the padding, a smaller output, or an error",
        is_maximum_of_padded,
        "kernel_shape = [3, 3]",
    ),
    _row(
        "AveragePool",
        "after a Pad with zeros, with `ceil_mode` = 1 or with windows in the padding",
        "a smaller output, or an error",
        is_mean_of_padded,
        "kernel_shape = [2, 2], ceil_mode = 1",
    ),
)
