"""What OpenVINO joins with reductions, or takes for a layer normalization: rows of the table in ``faults``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from isorun.plugin import Fault
from isorun_backends.nodes import Nodes, is_constant, number, producer, shape_of
from isorun_backends.openvino.row import fault

if TYPE_CHECKING:
    import onnx_ir as ir

_CONSTANT = "isorun.constant"
_DEEPEST = 8  # nodes from a reduction to a constant
_JOINED = frozenset(
    (
        *("Abs", "Add", "BatchNormalization", "Cast", "Ceil", "Celu", "Clip", "Div", "Dropout", "Elu", "Erf", "Exp"),
        *("Floor", "Gelu", "HardSigmoid", "HardSwish", "Identity", "LeakyRelu", "Log", "Mish", "Mul", "Neg", "PRelu"),
        *("Pow", "Reciprocal", "Relu", "Round", "Selu", "Sigmoid", "Softplus", "Softsign", "Sqrt", "Squeeze", "Sub"),
        *("Tanh", "ThresholdedRelu"),
    )
)


def is_of_reduction(node: ir.Node, _: int) -> bool:
    """Whether a constant of several elements meets what may be reduced from three axes."""
    parts = [value for value in node.inputs if value is not None and not _is_constant(value)]
    constants = [value for value in node.inputs if value is not None and _is_constant(value)]
    if len(node.outputs) != 1 or len(parts) != 1 or all(number(value) is not None for value in constants):
        return False
    value: ir.Value | None = parts[0]
    for _step in range(_DEEPEST):
        source = producer(value)
        if source is None:
            return False
        if source.op_type.startswith(("Reduce", "Global")):
            sizes = shape_of(source.inputs[0])
            return sizes is None or len(sizes) == 3
        if source.op_type not in _JOINED:
            return False
        value = next((part for part in source.inputs if part is not None and not _is_constant(part)), None)
    return False


def select(op: Nodes, node: ir.Node) -> ir.Value:
    """The operator of a selection of all elements, with which nothing is joined."""
    inputs = [
        value if value is None or _is_constant(value) else op("Where", op("Equal", value, value), value, value)
        for value in node.inputs
    ]
    return op(node.op_type, *inputs, **node.attributes)


def divides_another_difference(node: ir.Node, _: int) -> bool:
    """Whether a difference is divided by the root of a mean, and not known to be that of which the mean is."""
    root = producer(node.inputs[1], "Pow", "Sqrt", "Add")
    if producer(node.inputs[0], "Sub") is None or root is None:
        return False
    pending, known = list(root.inputs), set()
    while pending:
        source = producer(pending.pop())
        if source is None or source in known:
            continue
        known.add(source)
        if source.op_type == "ReduceMean":
            squared = producer(source.inputs[0])
            return squared is None or any(part is not node.inputs[0] for part in squared.inputs[:1])
        if source.op_type in ("Add", "Cast", "Max", "Pow", "Sqrt"):
            pending += source.inputs
    return False


def _is_constant(value: ir.Value) -> bool:
    """Whether a value is a constant, or computed from constants and shapes alone.

    It is asked of every operand, each of which depends on most of a graph, so answers are kept with the values.
    """
    pending = [value]
    while pending:
        current = pending[-1]
        node = current.producer()
        parts = [] if node is None else [part for part in node.inputs if part is not None]
        known = [part.meta.get(_CONSTANT) for part in parts]
        if is_constant(current) or (node is not None and node.op_type == "Shape"):
            current.meta[_CONSTANT] = True
        elif not parts or False in known:
            current.meta[_CONSTANT] = False
        elif None in known:
            pending.append(parts[known.index(None)])
            continue
        else:
            current.meta[_CONSTANT] = True
        pending.pop()
    return bool(value.meta[_CONSTANT])


def _joined(operator: str, inputs: str = "m, k", shape: str = "3, 1") -> Fault:
    return fault(
        f"{operator} | a constant of several elements, and a reduction of three axes | "
        "it uses the first elements alone",
        f"g (float[a, b, 4] x) => (float[c, d, e] y) <float[{shape}] k = {{0.5, 1, 5}}> "
        f"{{ m = ReduceMean <axes = [-1]> (x) y = {operator} ({inputs}) }}",
        applies=is_of_reduction,
        rewrite=select,
        feeds={"x": np.arange(-12, 12).reshape(2, 3, 4)},
    )


ROWS = (
    *map(_joined, ("Add", "Sub", "Mul", "Div", "PRelu")),
    _joined("BatchNormalization", "m, k, k, k, k", "3"),
    fault(
        "Div | a difference by the root of the mean of another difference | a layer normalization",
        "g (float[a, b, c, d] x) => (float[e, f, h, i] y) <float u = {0.1}> { m = ReduceMean <axes = [1]> (x) "
        "n = ReduceMean <axes = [2]> (x) d = Sub (x, m) o = Sub (x, n) p = Mul (d, d) "
        "v = ReduceMean <axes = [1]> (p) w = Add (v, u) s = Sqrt (w) y = Div (o, s) }",
        applies=divides_another_difference,
        rewrite=select,
        feeds={"x": np.arange(24, dtype=np.float32).reshape(1, 2, 3, 4) ** 2 % 7},
    ),
)
