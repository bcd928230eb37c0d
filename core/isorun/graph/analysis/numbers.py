"""Numbers in the computation of values: where it may change in rows longer than the samples that it is tried on."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

import onnx_ir as ir

from isorun.graph.analysis.evaluate import ancestors, array, is_constant, sizes

FEW = 64
"""The elements of a constant that may be a list of numbers, and is no table."""

_MOST = 1_000_000  # a larger number is no place in a row
_COMPARING = frozenset(("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual"))
_OF_WHOLE = frozenset(("Add", "Clip", "Div", "Max", "Min", "Mod", "Slice", "Sub", "TopK", "Trilu"))


def whole(values: Iterable[ir.Value], stop: frozenset[ir.Value] = frozenset()) -> set[int]:
    """The absolute values of the numbers that values are computed from, other than through those to stop at, rounded
    up to whole ones."""
    constants = {constant for value in values for constant in ancestors(value, stop) if is_constant(constant)}
    return {number for constant in constants for number in _numbers(constant)}


def compared(values: Iterable[ir.Value], stop: frozenset[ir.Value] = frozenset()) -> set[int]:
    """Those among them that another number is compared with, or that whole numbers are computed with: places in a row,
    or numbers of places, where a computation may change."""
    nodes = {
        node
        for value in values
        for computed in ancestors(value, stop)
        if computed not in stop and (node := computed.producer())
    }
    return {
        number
        for node in nodes
        if node.op_type in _COMPARING or (node.op_type in _OF_WHOLE and _is_of_whole(node))
        for operand in node.inputs
        if is_constant(operand)
        for number in _numbers(operand)
    }


def _is_of_whole(node: ir.Node) -> bool:
    if node.op_type in ("Slice", "TopK", "Trilu"):
        return True
    dtypes = [
        value.const_value.dtype if value.const_value is not None else value.dtype for value in node.inputs if value
    ]
    return any(dtype is not None and dtype.is_integer() for dtype in dtypes)


def _numbers(constant: ir.Value) -> Iterator[int]:
    if math.prod(sizes(constant)) > FEW:
        return
    for number in array(constant).reshape(-1).tolist():
        if isinstance(number, int | float) and abs(number) <= _MOST:
            yield math.ceil(abs(number))  # 31 for a window of 30.5
