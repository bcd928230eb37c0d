"""What tract computes wrongly by indices and places, or what ends the process: rows of the table in ``faults``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from isorun.plugin import Fault
from isorun_tract import equivalents
from isorun_tract.equivalents import attribute_of
from isorun_tract.row import fault

if TYPE_CHECKING:
    import onnx_ir as ir


def _numbers(value: ir.Value | None) -> np.ndarray | None:
    """Those of a constant; ``None`` for what is not one."""
    import onnx_ir as ir

    tensor = None if value is None else ir.convenience.get_const_tensor(value)
    return None if tensor is None else tensor.numpy()


def _limits(node: ir.Node) -> tuple[np.ndarray | None, np.ndarray | None, ir.Value | None]:
    """The constant starts and ends of a slice, and its steps."""
    starts, ends, _axes, steps = [*node.inputs[1:], None, None, None, None][:4]
    return _numbers(starts), _numbers(ends), steps


def _steps_between_computed(node: ir.Node, _: int) -> bool:
    """Whether a slice has other steps than 1 and a start or an end that is no constant."""
    starts, ends, steps = _limits(node)
    if steps is None or (starts is not None and ends is not None):
        return False
    numbers = _numbers(steps)
    return numbers is None or bool((numbers != 1).any())


def _may_be_negative(node: ir.Node) -> bool:
    """Whether the second input may have numbers below 0."""
    indices = node.inputs[1]
    numbers = None if indices is None or indices.is_graph_input() else _numbers(indices)
    return numbers is None or bool((numbers < 0).any())


def _may_choose_rows_from_end(node: ir.Node, opset: int) -> bool:
    indices = node.inputs[1]
    checked = None if indices is None else indices.producer()
    if checked is not None and checked.op_type == "Where":  # 0 in the place of what is outside
        indices = checked.inputs[2]
    shape = None if indices is None else indices.shape
    of_rows = shape is not None and shape[-1] == 1 and not attribute_of(node, "batch_dims", 0)
    return of_rows and opset >= 13 and _may_be_negative(node)


def _slices_nothing(node: ir.Node, _: int) -> bool:
    """Whether a constant start is behind the constant end of the same sign."""
    starts, ends, steps = _limits(node)
    if starts is None or ends is None:
        return False
    numbers = _numbers(steps)
    forward = 1 if numbers is None else np.sign(numbers)
    return bool(((starts - ends) * forward > 0)[(starts < 0) == (ends < 0)].any())


def _is_size(value: ir.Value | None) -> bool:
    """Whether a value is computed from sizes and constants alone."""
    waiting, known = [value], set()
    while waiting:
        current = waiting.pop()
        node = None if current is None else current.producer()
        if current in known or _numbers(current) is not None:
            continue
        if node is None or not node.inputs:
            return False
        known.add(current)
        if node.op_type not in ("Shape", "Size"):
            waiting += node.inputs
    return True


def _may_divide_by_zero(node: ir.Node, _: int) -> bool:
    """Whether a divisor is an integer that may be 0. Sizes are not rewritten: tract computes with their symbols."""
    divisor = node.inputs[1]
    if divisor is None or divisor.dtype is None or not divisor.dtype.is_integer():
        return False
    numbers = None if divisor.is_graph_input() else _numbers(divisor)
    return not _is_size(divisor) if numbers is None else not numbers.all()


_ARITHMETIC = ("Add", "Cast", "Expand", "Identity", "Mul", "Neg", "Reshape", "Squeeze", "Sub", "Transpose", "Unsqueeze")


def _counts(value: ir.Value | None) -> bool:
    """Whether a value is computed from a Range, as places in a row are."""
    waiting, known = [value], set()
    while waiting:
        current = waiting.pop()
        node = None if current is None else current.producer()
        if node is not None and node not in known:
            if node.op_type == "Range":
                return True
            known.add(node)
            waiting += node.inputs if node.op_type in _ARITHMETIC else ()
    return False


def _compares(operator: str) -> Fault:
    return fault(
        operator=operator,
        condition="the elements of a Range with those of another one",
        result="a mask of two rows, in `And`, `Where` and products",
        applies=lambda node, _: all(map(_counts, node.inputs)),
        rewrite=equivalents.by_maximum,
        model=(
            "g (float[n] x) => (float[n, n] y) <int64[1] first = {0}, int64[1] last = {1}, int64 zero = {0}, "
            "int64 one = {1}, float on = {1}, float off = {0}> { s = Shape (x) l = Squeeze (s, first) "
            "k = Range (zero, l, one) q = Unsqueeze (k, last) "
            f"m = {operator} (k, q) y = Where (m, on, off) }}"
        ),
        feeds={"x": np.zeros(3, np.float32)},
    )


def _divides(operator: str) -> Fault:
    return fault(
        operator=operator,
        condition="integers by numbers that may be 0",
        result="it ends the process",
        applies=_may_divide_by_zero,
        rewrite=equivalents.zero_by_zero,
        model=f"g (int64[n] x, int64[n] z) => (int64[n] y) {{ y = {operator} (x, z) }}",
        feeds={"x": np.array([7, 7]), "z": np.array([0, 2])},
        expected=[np.array([0, 3 if operator == "Div" else 1])],
        ends_process=True,
    )


ROWS = (
    *map(_divides, ("Div", "Mod")),
    *map(_compares, ("GreaterOrEqual", "Less", "LessOrEqual")),
    fault(
        operator="GatherND",
        condition="indices of one axis, below 0",
        result="it ends the process, as do those of several axes",
        applies=_may_choose_rows_from_end,
        rewrite=equivalents.rows_from_either_end,
        model="g (float[n, 2] x, int64[m, 1] i) => (float[m, 2] y) { y = GatherND (x, i) }",
        feeds={"x": np.arange(6, dtype=np.float32).reshape(3, 2), "i": np.array([[-1], [-3]])},
        expected=[np.array([[4, 5], [0, 1]], np.float32)],
        ends_process=True,
    ),
    fault(
        operator="ScatterND",
        condition="`reduction`, with indices that may be below 0",
        result="it ends the process",
        applies=lambda node, _: attribute_of(node, "reduction", "none") != "none" and _may_be_negative(node),
        model="g (float[n] x, int64[m, 1] i, float[m] u) => (float[n] y) "
        '{ y = ScatterND <reduction = "add"> (x, i, u) }',
        opset=18,
        feeds={"x": np.zeros(3, np.float32), "i": np.array([[-1]]), "u": np.ones(1, np.float32)},
        expected=[np.array([0, 0, 1], np.float32)],
        ends_process=True,
    ),
    fault(
        operator="Slice",
        condition="constants of which one axis has no element",
        result="it ends the process",
        applies=_slices_nothing,
        model="g (float[n] x) => (float[m] y) <int64[1] s = {3}, int64[1] e = {1}> { y = Slice (x, s, e) }",
        feeds={"x": np.arange(4, dtype=np.float32)},
        expected=[np.zeros(0, np.float32)],
        ends_process=True,
    ),
    fault(
        operator="OneHot",
        condition="indices outside of the range",
        result="it ends the process",
        applies=lambda _, opset: opset >= 13,
        rewrite=equivalents.off_outside,
        model="g (int64[n] i) => (float[n, 3] y) <int64[1] d = {3}, float[2] v = {5, 1}> { y = OneHot (i, d, v) }",
        feeds={"i": np.array([-4, -1, 3])},
        expected=[np.array([[5, 5, 5], [5, 5, 1], [5, 5, 5]], np.float32)],
        ends_process=True,
    ),
    fault(
        operator="Slice",
        condition="steps other than 1, with a computed start or end",
        result="the input as it is",
        applies=_steps_between_computed,
        model=(
            "g (float[a] x, int64[1] e) => (float[b] y) <int64[1] s = {0}, int64[1] k = {0}, int64[1] p = {2}> "
            "{ y = Slice (x, s, e, k, p) }"
        ),
        feeds={"x": np.arange(4, dtype=np.float32), "e": np.array([4])},
    ),
)
