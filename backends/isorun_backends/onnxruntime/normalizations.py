"""What ONNX Runtime's optimizers take for a layer normalization: rows of the table in ``faults``.

They look at the kinds of nodes, and hardly at what the nodes compute. Each equivalent has another kind of node in the
chain.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from isorun.plugin import Fault
from isorun_backends.nodes import Condition, Nodes, Rewrite, array_of, producer
from isorun_backends.onnxruntime.row import fault, fault_before_1_32

if TYPE_CHECKING:
    import onnx_ir as ir

_STEPS = {"Sub": "Sub (x, m)", "Pow": "Pow (d, two)", "Add": "Add (v, e)", "Div": "Div (d, s)"}


def is_from_mean(node: ir.Node, _: int) -> bool:
    """Whether a value is subtracted from its own mean."""
    mean = _producer(node.inputs[0], "ReduceMean")
    return mean is not None and mean.inputs[0] is node.inputs[1]


def has_many_epsilons(node: ir.Node, _: int) -> bool:
    """Whether something other than one number is added to a mean of which the root is taken."""
    if not _is_read_by(node, "Sqrt"):
        return False
    pairs = (node.inputs, node.inputs[::-1])
    return any(_producer(mean, "ReduceMean") is not None and not _is_one(added) for mean, added in pairs)


def _is_one(value: ir.Value | None, number: float | None = None) -> bool:
    """Whether a value is a constant of one element, or one with that number alone."""
    elements = array_of(value)
    if elements is None:
        return False
    return elements.size == 1 if number is None else elements.size > 0 and bool((elements == number).all())


def _producer(value: ir.Value | None, kind: str) -> ir.Node | None:
    """The node that a value comes from, past a change of its type, if it is of a kind."""
    cast = producer(value, "Cast")
    return producer(value if cast is None else cast.inputs[0], kind)


def _is_read_by(node: ir.Node, kind: str) -> bool:
    return any(reader.op_type == kind for reader in node.outputs[0].consumers())


def _negate_twice(op: Nodes, node: ir.Node) -> ir.Value:
    return op("Neg", op("Neg", op(node.op_type, *node.inputs)))


def _row(
    operator: str,
    step: str,
    condition: str,
    applies: Condition,
    rewrite: Rewrite = _negate_twice,
    epsilon: str = "float e = {1}",
) -> Fault:
    steps = {**_STEPS, operator: step}
    row = fault_before_1_32 if operator == "Add" else fault
    return row(
        f"{operator} | {condition} | a layer normalization",
        f"g (float[N, 4] x) => (float[N, 4] y) <float two = {{2}}, float four = {{4}}, {epsilon}, "
        "float[4] w = {1, 2, 3, 4}> { m = ReduceMean <axes = [-1]> (x) "
        f"d = {steps['Sub']} q = {steps['Pow']} v = ReduceMean <axes = [-1]> (q) a = {steps['Add']} s = Sqrt (a) "
        f"n = {steps['Div']} g = Mul (n, w) y = Add (g, w) }}",
        applies=applies,
        rewrite=rewrite,
        feeds={"x": [[1, 2, 4, 9]]},
    )


ROWS = (
    _row(
        *("Pow", "Pow (d, four)", "a power other than the second, of which the mean is taken"),
        lambda node, _: _is_read_by(node, "ReduceMean") and not _is_one(node.inputs[1], 2),
    ),
    _row(
        *("Sub", "Sub (m, x)", "a value subtracted from its mean", is_from_mean),
        rewrite=lambda op, node: op("Neg", op("Sub", *node.inputs[::-1])),
    ),
    _row(
        *("Div", "Div (s, d)", "a root divided by a difference"),
        lambda node, _: bool(_producer(node.inputs[0], "Sqrt") and _producer(node.inputs[1], "Sub")),
    ),
    _row(
        *("Add", "Add (v, e)", "several numbers added to a mean of which the root is taken", has_many_epsilons),
        epsilon="float[4] e = {1, 2, 3, 4}",
    ),
)
