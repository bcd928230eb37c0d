"""Integers for which ONNX Runtime's CPU provider ends the process: rows of the table in ``faults``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from isorun.plugin import Fault
from isorun_backends.nodes import Nodes, attribute_of, dtype_of, input_of, settled
from isorun_backends.onnxruntime.row import fault, fault_before_1_32

if TYPE_CHECKING:
    import onnx_ir as ir

_BITS = 32  # of integers that the processor divides as they are; shorter ones are widened


def _may_divide_by_minus_one(node: ir.Node, _: int) -> bool:
    """Whether integers that the processor divides as they are may be divided by -1."""
    value = input_of(node, 1)
    if value is None or value.dtype is None or not (value.dtype.is_integer() and value.dtype.is_signed()):
        return False
    divisors = settled(value)
    is_wide = value.dtype.itemsize * 8 >= _BITS
    return is_wide and not attribute_of(node, "fmod", 0) and (divisors is None or bool((divisors == -1).any()))


def _by_one(op: Nodes, node: ir.Node) -> ir.Value:
    """The same by 1 where the divisor is -1, with the sign of the quotient turned; the remainder is 0."""
    x, divisor = node.inputs
    minus, one = (op.constant(number, dtype_of(divisor)) for number in (-1, 1))
    turned = op("Equal", divisor, minus)
    result = op(node.op_type, x, op("Where", turned, one, divisor))
    return result if node.op_type == "Mod" else op("Where", turned, op("Neg", result), result)


def _row(operator: str) -> Fault:
    row = fault if operator == "Div" else fault_before_1_32
    return row(
        f"{operator} | the lowest integer by -1 | it ends the process",
        f"g (int32[n] x, int32[n] z) => (int32[n] y) {{ y = {operator} (x, z) }}",
        applies=_may_divide_by_minus_one,
        rewrite=_by_one,
        feeds={"x": [-(2**31), 7], "z": [-1, -1]},
        ends_process=True,
    )


ROWS = (_row("Div"), _row("Mod"))
