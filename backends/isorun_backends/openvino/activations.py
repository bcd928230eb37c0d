"""What OpenVINO takes for a GELU or a hard swish though it has other constants: rows of the table in ``faults``.

It allows for 1e-3 to 1e-2. Erf and Tanh are odd, so that a sign on both sides changes nothing but the pattern.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from isorun_backends.nodes import Nodes, number, producer
from isorun_backends.openvino.row import fault

if TYPE_CHECKING:
    import onnx_ir as ir

_ROOT, _TANH_ROOT, _CUBE, _SIXTH = math.sqrt(2), math.sqrt(2 / math.pi), 0.044715, 1 / 6
_STEPS = ("Add", "Cast", "Div", "Mul", "Pow")
_DEEPEST = 6  # from a Tanh to what is cubed
_X = np.array([[-1.5, -0.5, 0.5, 1.5]], np.float32)


def is_of_another_root(node: ir.Node, _: int) -> bool:
    """Whether an Erf is of a quotient by almost the root of 2."""
    constants = list(_numbers(node.inputs[0], 2))
    return any(_is_almost(constant, root, 1e-3) for constant in constants for root in (_ROOT, 1 / _ROOT))


def is_of_another_cubic(node: ir.Node, _: int) -> bool:
    """Whether a Tanh is of almost the cubic in a GELU."""
    constants = _numbers(node.inputs[0], _DEEPEST)
    return any(_is_almost(constant, _CUBE, 1e-3) or _is_almost(constant, _TANH_ROOT, 1e-2) for constant in constants)


def is_by_almost_a_sixth(node: ir.Node, _: int) -> bool:
    """Whether a value is multiplied by almost 1 / 6."""
    constants = map(number, node.inputs)
    return any(constant is not None and _is_almost(constant, _SIXTH, 1e-3) for constant in constants)


def of_negative(op: Nodes, node: ir.Node) -> ir.Value:
    """The negative of the operator of the negative."""
    return op("Neg", op(node.op_type, op("Neg", *node.inputs)))


def divide(op: Nodes, node: ir.Node) -> ir.Value:
    """A quotient by the reciprocal."""
    value, constant = node.inputs if number(node.inputs[1]) else node.inputs[::-1]
    return op("Div", value, op("Reciprocal", constant))


def _numbers(value: ir.Value | None, steps: int) -> Iterator[float]:
    """The constants of one element by which a value is computed, some steps back."""
    node = producer(value, *_STEPS) if steps else None
    for source in () if node is None else node.inputs:
        constant = number(source)
        if constant is not None:
            yield constant
        else:
            yield from _numbers(source, steps - 1)


def _is_almost(constant: float, target: float, tolerance: float) -> bool:
    """Whether a number is near another one, and not equal to it in fp32."""
    return 1e-7 * target < abs(constant - target) < 1.1 * tolerance


def _gelu(operator: str, constants: str, steps: str) -> str:
    return (
        f"g (float[N, 4] x) => (float[N, 4] y) <{constants}, float one = {{1}}, float half = {{0.5}}> "
        f"{{ {steps} b = {operator} (a) c = Add (b, one) d = Mul (x, half) y = Mul (d, c) }}"
    )


ROWS = (
    fault(
        "Erf | of a quotient by another number near the root of 2 | a GELU, off by up to 3e-4",
        _gelu("Erf", "float r = {1.415}", "a = Div (x, r)"),
        applies=is_of_another_root,
        rewrite=of_negative,
        feeds={"x": _X},
    ),
    fault(
        "Tanh | of a cubic with other numbers near a GELU's | a GELU, off by up to 2e-3",
        _gelu(
            *("Tanh", "float three = {3}, float u = {0.0447}, float r = {0.8}"),
            "p = Pow (x, three) q = Mul (p, u) s = Add (x, q) a = Mul (s, r)",
        ),
        applies=is_of_another_cubic,
        rewrite=of_negative,
        feeds={"x": _X},
    ),
    fault(
        "Mul | by another number near 1 / 6 | a hard swish, off by up to 3e-4 of its value",
        "g (float[N, 4] x) => (float[N, 4] y) <float three = {3}, float six = {6}, float sixth = {0.1667}> "
        "{ a = Add (x, three) r = Relu (a) b = Min (r, six) c = Mul (x, b) y = Mul (c, sixth) }",
        applies=is_by_almost_a_sixth,
        rewrite=divide,
        feeds={"x": _X},
    ),
)
