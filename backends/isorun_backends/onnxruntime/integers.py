"""Integers for which ONNX Runtime's CPU provider ends the process: rows of the table in ``faults``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from isorun.plugin import Fault
from isorun_backends.nodes import attribute_of, constant, input_of, new_node, static

if TYPE_CHECKING:
    import onnx_ir as ir

_LOWEST = np.array([-(2**31), 7], np.int32)
_BITS = 32  # of integers that the processor divides as they are; shorter ones are widened


def _may_divide_by_minus_one(node: ir.Node, _: int) -> bool:
    """Whether integers that the processor divides as they are may be divided by -1."""
    value = input_of(node, 1)
    if value is None or value.dtype is None or not (value.dtype.is_integer() and value.dtype.is_signed()):
        return False
    divisors = static(value)
    is_wide = value.dtype.itemsize * 8 >= _BITS
    return is_wide and not attribute_of(node, "fmod", 0) and (divisors is None or -1 in divisors)


def _by_one(node: ir.Node) -> list[ir.Node]:
    """The same by 1 where the divisor is -1, with the sign of the quotient turned; the remainder is 0."""

    x, divisor = node.inputs
    assert divisor is not None
    assert divisor.dtype is not None
    kind = divisor.dtype.numpy()
    minus, one = (constant(np.array(number, kind)) for number in (-1, 1))
    turned = new_node("Equal", [divisor, minus.outputs[0]])
    safe = new_node("Where", [turned.outputs[0], one.outputs[0], divisor])
    result = new_node(node.op_type, [x, safe.outputs[0]])
    if node.op_type == "Mod":
        return [minus, one, turned, safe, result]
    opposite = new_node("Neg", [result.outputs[0]])
    chosen = new_node("Where", [turned.outputs[0], opposite.outputs[0], result.outputs[0]])
    return [minus, one, turned, safe, result, opposite, chosen]


def _row(operator: str, expected: np.ndarray) -> Fault:
    return Fault(
        operator=operator,
        condition="the lowest integer by -1",
        result="it ends the process",
        versions="1.31.1",
        applies=_may_divide_by_minus_one,
        rewrite=_by_one,
        model=f"g (int32[n] x, int32[n] z) => (int32[n] y) {{ y = {operator} (x, z) }}",
        feeds={"x": _LOWEST, "z": np.array([-1, -1], np.int32)},
        expected=[expected],
        ends_process=True,
    )


ROWS = (_row("Div", np.array([-(2**31), -7], np.int32)), _row("Mod", np.zeros(2, np.int32)))
