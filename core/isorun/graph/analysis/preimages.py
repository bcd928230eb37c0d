"""Which numbers an operand may have for a result to be in a set.

Sets are supersets: a number that is left out certainly leads out of the set. One exception: a ``Cast`` to a narrower
type is followed as if it changed no number, so that what it would wrap into the set (2^32 + 5 to 5) is left out.
"""

from __future__ import annotations

import math

import onnx_ir as ir

from isorun.graph.analysis.intervals import (
    ALL,
    Ranges,
    Span,
    Spans,
    comparison,
    complement,
    constant_range,
    contains,
    dtype_of,
    intersection,
    is_integer,
    scalar,
    union,
)

_ELEMENTWISE = frozenset(
    (
        *("Abs", "Add", "And", "Cast", "Clip", "Div", "Equal", "Greater", "GreaterOrEqual", "Identity", "Less"),
        *("LessOrEqual", "Max", "Min", "Mod", "Mul", "Neg", "Not", "Or", "Sub", "Where"),
    )
)
_STEPS = 32  # how far back operands are followed


def operands(value: ir.Value) -> list[ir.Value]:
    """The values that a value is computed from element by element; itself if there are none."""
    preimages: dict[ir.Value, None] = {}
    seen: set[ir.Value] = set()
    stack = [(value, 0)]
    while stack:
        current, depth = stack.pop()
        if current in seen or constant_range(current) is not None:
            continue
        seen.add(current)
        node = current.producer()
        if node is None or node.domain != "" or node.op_type not in _ELEMENTWISE or depth == _STEPS:
            preimages[current] = None
        else:
            stack.extend((operand, depth + 1) for operand in node.inputs if operand is not None)
    return list(preimages)


class Preimage:
    """The numbers of one operand.

    Args:
        operand: one of :func:`operands`.
        ranges: of the other values.
    """

    def __init__(self, operand: ir.Value, ranges: Ranges) -> None:
        self._operand = operand
        self._ranges = ranges

    def __call__(self, value: ir.Value | None, spans: Spans, steps: int = _STEPS) -> Spans:
        """The numbers that the operand may have for a value to be in a set."""
        if value is None or spans == ALL or steps == 0:
            return ALL
        if value is self._operand:
            return spans
        if (constant := constant_range(value)) is not None:
            return ALL if intersection((constant,), spans) else ()
        node = value.producer()
        if node is None or node.domain != "" or node.op_type not in _ELEMENTWISE:
            return ALL
        if dtype_of(value) == ir.DataType.BOOL:
            return self._truth(value, spans, steps)
        return self._of_node(node, spans, steps - 1)

    def _truth(self, value: ir.Value, spans: Spans, steps: int) -> Spans:
        """The numbers for which a boolean is 1, or 0, as the set has it."""
        allowed: Spans = ()
        for holds in (True, False):
            if contains(spans, holds):
                allowed = union(allowed, self._when(value, holds=holds, steps=steps - 1))
        return allowed

    def _when(self, condition: ir.Value | None, *, holds: bool, steps: int) -> Spans:
        node = None if condition is None else condition.producer()
        if node is None or node.domain != "" or steps == 0:
            return ALL
        if node.op_type == "Not":
            return self._when(node.inputs[0], holds=not holds, steps=steps - 1)
        if node.op_type in ("And", "Or"):
            either = [self._when(operand, holds=holds, steps=steps - 1) for operand in node.inputs]
            return (intersection if (node.op_type == "And") == holds else union)(*either)
        if node.op_type == "Cast":
            source = node.inputs[0]
            if is_integer(source):
                zero: Spans = ((0, 0),)
                return self(source, complement(zero) if holds else zero, steps - 1)
            return ALL
        compared = comparison(condition, holds=holds)
        return ALL if compared is None else self(*compared, steps - 1)

    def _of_node(self, node: ir.Node, spans: Spans, steps: int) -> Spans:
        kind, first = node.op_type, node.inputs[0]
        if kind in ("Cast", "Identity"):
            return self(first, spans, steps)
        if kind == "Neg":
            return self(first, _negated(spans), steps)
        if kind == "Abs":
            return self(first, union(spans, _negated(spans)), steps)
        if kind == "Where":
            condition, yes, no = node.inputs
            return union(
                intersection(self(yes, spans, steps), self._when(condition, holds=True, steps=steps)),
                intersection(self(no, spans, steps), self._when(condition, holds=False, steps=steps)),
            )
        if kind in ("Min", "Max", "Clip"):
            return self._clipped(node, spans, steps)
        if kind in ("Add", "Sub", "Mul", "Div", "Mod") and len(node.inputs) == 2:
            return self._arithmetic(node, spans, steps)
        return ALL

    def _arithmetic(self, node: ir.Node, spans: Spans, steps: int) -> Spans:
        kind, (left, right) = node.op_type, node.inputs
        if kind in ("Add", "Sub"):
            low, high = self._ranges(right)
            minus = (-high, -low) if kind == "Add" else (low, high)
            of_left = self(left, _moved(spans, *minus), steps)
            low, high = self._ranges(left)
            moved = _moved(spans, -high, -low) if kind == "Add" else _moved(_negated(spans), low, high)
            return intersection(of_left, self(right, moved, steps))
        if kind == "Mul":
            return intersection(self._factor(left, right, spans, steps), self._factor(right, left, spans, steps))
        divisor = scalar(right)
        if kind == "Div" and divisor is not None and divisor > 0 and is_integer(left):
            widened = [
                (low * divisor - (divisor - 1 if low <= 0 else 0), high * divisor + (divisor - 1 if high >= 0 else 0))
                for low, high in spans
            ]
            return self(left, union(tuple(widened), ()), steps)
        return ALL

    def _factor(self, value: ir.Value | None, cofactor: ir.Value | None, spans: Spans, steps: int) -> Spans:
        """The numbers of a factor for which its product with another is in a set."""
        number = scalar(cofactor)
        if number is None:
            if self._ranges(cofactor) != (0, 1):
                return ALL
            kept = intersection(self(value, spans, steps), self(cofactor, ((1, 1),), steps))
            return union(kept, self(cofactor, ((0, 0),), steps)) if contains(spans, 0) else kept
        if number == 0:
            return ALL if contains(spans, 0) else ()
        ordered = spans if number > 0 else _negated(spans)
        size = abs(number)
        divided = ((_up(low, size), _down(high, size)) for low, high in ordered)
        return self(value, tuple((low, high) for low, high in divided if low <= high), steps)

    def _clipped(self, node: ir.Node, spans: Spans, steps: int) -> Spans:
        if node.op_type == "Clip":
            if "min" in node.attributes or "max" in node.attributes:
                return ALL
            value, *ends = [*node.inputs, None, None][:3]
            limits = [(end, is_maximum) for end, is_maximum in zip(ends, (False, True), strict=True) if end is not None]
            numbers = [(scalar(end), is_maximum) for end, is_maximum in limits]
        else:
            varying = [operand for operand in node.inputs if constant_range(operand) is None]
            if len(varying) != 1:
                return ALL
            value = varying[0]
            constants = [operand for operand in node.inputs if operand is not value]
            numbers = [(scalar(operand), node.op_type == "Min") for operand in constants]
        inside: Span
        outside: Span
        for number, is_maximum in reversed(numbers):  # the maximum of a Clip applies last
            if number is None:
                return ALL
            inside, outside = (-math.inf, number - 1), (number, math.inf)
            if not is_maximum:
                inside, outside = (number + 1, math.inf), (-math.inf, number)
            kept = intersection(spans, (inside,))
            spans = union(kept, (outside,)) if contains(spans, number) else kept
        return self(value, spans, steps)


def _negated(spans: Spans) -> Spans:
    return tuple((-high, -low) for low, high in reversed(spans))


def _moved(spans: Spans, low: float, high: float) -> Spans:
    """Every number of a set plus every number from ``low`` to ``high``."""
    return union(tuple((first + low, last + high) for first, last in spans), ())


def _up(number: float, divisor: int) -> float:
    return number if math.isinf(number) else -(-number // divisor)


def _down(number: float, divisor: int) -> float:
    return number if math.isinf(number) else number // divisor
