"""The ranges of the integers that a graph computes.

Ranges are supersets: a value is never outside its range, and a range may hold numbers that the value never has.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np
import onnx_ir as ir

from isorun.graph.analysis import tokens
from isorun.graph.io.nodes import needed

Span = tuple[float, float]
"""The first and the last number; infinite for none."""

EVERYTHING: Span = (-math.inf, math.inf)
SAME_ELEMENTS = frozenset(("Expand", "Flatten", "Identity", "Reshape", "Squeeze", "Tile", "Transpose", "Unsqueeze"))
"""Operators whose outputs have all elements of their first input, and no others."""

_BRANCHES = ("then_branch", "else_branch")
_LARGEST = 2**20  # elements of a constant that are read
_STEPS = 64  # how far back a range is computed
_SUBSETS = frozenset(("Gather", "GatherElements", "GatherND", "Slice", "Split"))
_BOOLEAN = frozenset(("And", "Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Not", "Or", "Xor"))
_NOT_NEGATIVE = frozenset(("ArgMax", "ArgMin", "NonZero", "Shape", "Size"))
_ARITHMETIC = ("Abs", "Add", "Clip", "Concat", "CumSum", "Div", "Max", "Min", "Mod", "Mul", "Neg", "Range", "Sub")
_SAME_TYPE = SAME_ELEMENTS | _SUBSETS | {*_ARITHMETIC, "Where"}
_MOST = 2**31 - 1  # of the elements of an array


def is_integer(value: ir.Value | None) -> bool:
    """Whether a value is known to hold integers."""
    dtype = dtype_of(value)
    return dtype is not None and dtype.is_integer()


def dtype_of(value: ir.Value | None, steps: int = 64) -> ir.DataType | None:
    """The type of a value's elements, inferred where the model does not declare it; ``None`` if unknown."""
    if value is None or value.dtype is not None or steps == 0:
        return None if value is None else value.dtype
    node = value.producer()
    if node is None or node.domain != "":
        return None
    if node.op_type in _BOOLEAN:
        return ir.DataType.BOOL
    if node.op_type in _NOT_NEGATIVE or (node.op_type == "TopK" and node.outputs[1] is value):
        return ir.DataType.INT64
    if node.op_type == "Cast":
        return ir.DataType(node.attributes["to"].as_int())
    if node.op_type == "Constant":
        return None if value.const_value is None else value.const_value.dtype
    if node.op_type == "ConstantOfShape":
        filled = node.attributes.get("value")
        return ir.DataType.FLOAT if filled is None else filled.as_tensor().dtype
    if node.op_type in _SAME_TYPE:
        return dtype_of(node.inputs[node.op_type == "Where"], steps - 1)
    return None


def branches(value: ir.Value) -> list[ir.Value]:
    """The results of the branches of the ``If`` that computes a value."""
    node = needed(value.producer())
    return [node.attributes[name].as_graph().outputs[node.outputs.index(value)] for name in _BRANCHES]


def same_elements(value: ir.Value) -> ir.Value | None:
    """The value that has all elements of another, and no others; ``None`` if there is none.

    PyTorch's exporter writes ``If`` with the same elements in both branches around ``Squeeze``.
    """
    node = value.producer()
    if node is None or node.domain != "":
        return None
    if node.op_type in SAME_ELEMENTS:
        return node.inputs[0]
    if node.op_type != "If":
        return None
    sources = set()
    for result in branches(value):
        source: ir.Value = result
        while (before := same_elements(source)) is not None:
            source = before
        sources.add(source)
    return sources.pop() if len(sources) == 1 else None


def constant_range(value: ir.Value | None) -> Span | None:
    """The range of a constant; ``None`` for other values, and for constants that are large or hold other numbers."""
    tensor = None if value is None or value.is_graph_input() else tokens.constant(value)
    if tensor is None or not 0 < tensor.size <= _LARGEST:
        return None
    elements = tensor.numpy()
    if elements.dtype.kind not in "iub" and (elements.dtype.kind != "f" or not (elements == np.rint(elements)).all()):
        return None
    return int(elements.min()), int(elements.max())


class Ranges:
    """The ranges of a graph's integers.

    Args:
        inputs: the ranges of graph inputs.
    """

    def __init__(self, inputs: Mapping[ir.Value, Span] | None = None) -> None:
        self._inputs = inputs or {}
        self._known: dict[ir.Value, Span] = {}

    def __call__(self, value: ir.Value | None) -> Span:
        """The range of a value."""
        return self._range(value, _STEPS)

    def _range(self, value: ir.Value | None, steps: int) -> Span:
        if value is None or steps == 0:
            return EVERYTHING
        if value in self._known:
            return self._known[value]
        if (constant := constant_range(value)) is not None:
            return constant
        node = value.producer()
        if node is None:
            span = self._inputs.get(value, EVERYTHING)
        elif node.domain != "":
            span = EVERYTHING
        else:
            span = self._of_node(node, value, lambda operand: self._range(operand, steps - 1))
        if dtype_of(value) == ir.DataType.BOOL:
            span = max(span[0], 0), min(span[1], 1)
        if steps > _STEPS // 2:
            self._known[value] = span
        return span

    def _of_node(self, node: ir.Node, value: ir.Value, of: Callable[[ir.Value | None], Span]) -> Span:
        kind, operands = node.op_type, list(node.inputs)
        if kind in _BOOLEAN:
            return 0, 1
        if kind in _NOT_NEGATIVE or (kind == "TopK" and node.outputs.index(value) == 1):
            return 0, _MOST
        if kind in SAME_ELEMENTS or kind in _SUBSETS:
            return of(operands[0])
        if kind == "Cast":
            return _cast(of(operands[0]), dtype_of(value))
        if kind == "ConstantOfShape":
            filled = node.attributes.get("value")
            number = 0.0 if filled is None else float(filled.as_tensor().numpy().reshape(-1)[0])
            return number, number
        if kind in ("Concat", "If", "Where"):
            parts = {"Concat": operands, "Where": operands[1:]}
            spans = [of(part) for part in (parts[kind] if kind in parts else branches(value))]
            return min(low for low, _ in spans), max(high for _, high in spans)
        if kind == "Range":
            (start, _), (_, stop), (step, _) = (of(operand) for operand in operands)
            return (start, stop - 1) if step > 0 else EVERYTHING
        if kind == "CumSum":
            low, high = of(operands[0])
            return (0, high * _MOST) if low >= 0 and high > 0 else EVERYTHING
        if not is_integer(value):
            return EVERYTHING
        return _arithmetic(node, [of(operand) for operand in operands if operand is not None])


def _cast(span: Span, dtype: ir.DataType | None) -> Span:
    """The range after a conversion, which wraps numbers that the type does not hold."""
    if dtype is None or not dtype.is_integer():
        return span
    limits = np.iinfo(dtype.numpy())
    fits = limits.min <= span[0] and span[1] <= limits.max
    return span if fits else (int(limits.min), int(limits.max))


def _arithmetic(node: ir.Node, spans: list[Span]) -> Span:
    """The range of an operation on integers."""
    low, high = spans[0]
    match node.op_type:
        case "Add":
            return low + spans[1][0], high + spans[1][1]
        case "Sub":
            return low - spans[1][1], high - spans[1][0]
        case "Neg":
            return -high, -low
        case "Abs":
            return max(low, -high, 0), max(-low, high)
        case "Mul":
            products = [0 if 0 in (a, b) else a * b for a in spans[0] for b in spans[1]]
            return min(products), max(products)
        case "Div" if spans[1][0] == spans[1][1] and spans[1][0] > 0:
            ends = [end if math.isinf(end) else truncated(end, spans[1][0]) for end in spans[0]]
            return ends[0], ends[1]
        case "Mod" if not node.attributes.get_int("fmod", 0) and spans[1][0] > 0:
            return 0, spans[1][1] - 1
        case "Min":
            return min(span[0] for span in spans), min(span[1] for span in spans)
        case "Max":
            return max(span[0] for span in spans), max(span[1] for span in spans)
        case "Clip" if "min" not in node.attributes and "max" not in node.attributes:
            minimum, maximum = (_end(node, index, spans) for index in (1, 2))
            low, high = max(low, minimum[0]), max(high, minimum[1])
            return (low, high) if maximum is EVERYTHING else (min(low, maximum[0]), min(high, maximum[1]))
    return EVERYTHING


def _end(node: ir.Node, index: int, spans: list[Span]) -> Span:
    """The range of an end of a Clip; of any number for one that is absent."""
    if len(node.inputs) <= index or node.inputs[index] is None:
        return (-math.inf, -math.inf) if index == 1 else EVERYTHING
    return spans[sum(value is not None for value in node.inputs[:index])]


def truncated(number: float, divisor: float) -> int:
    """The quotient as integers have it: towards zero."""
    return int(abs(number) // divisor) * (1 if number >= 0 else -1)
