"""Inputs without elements: what the tables of known faults of several runtimes share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from isorun.plugin import Fault
from isorun_backends.nodes import GATES, Nodes, Rows, dtype_of, shape_of

if TYPE_CHECKING:
    import onnx_ir as ir

_FIRST_OPSET = 9  # without ConstantOfShape before


Keep = Callable[[Nodes, "ir.Value | None", Sequence["ir.Value"], Sequence[list[Any] | None]], None]


def recurrent_of_nothing(fault: Rows, operator: str, keep: Keep | None = None) -> Fault:
    """A recurrent layer of a batch of no rows, or of no steps. ``keep`` adds what a runtime needs behind an ``If``, by
    its condition, its outputs and their known sizes."""
    weights = f"float[1, {GATES[operator] * 2}, 2] w"
    return fault(
        f"{operator} | a batch or a length that may be 0 | it ends the process",
        f"g (float[a, b, 2] x, {weights}) => (float[c, d, e, f] y) {{ y = {operator} <hidden_size = 2> (x, w, w) }}",
        applies=_may_be_of_nothing,
        rewrite=lambda op, node: _unless_of_nothing(op, node, keep),
        feeds={"x": np.ones((3, 0, 2)), "w": np.ones((1, GATES[operator] * 2, 2), np.float32)},
        ends_process=True,
    )


def _may_be_of_nothing(node: ir.Node, opset: int) -> bool:
    sizes = shape_of(node.inputs[0])
    return opset >= _FIRST_OPSET and may_be_empty(sizes and sizes[:2])


def may_be_empty(sizes: Sequence[Any] | None) -> bool:
    """Whether a tensor may have no elements, by its sizes or ``None``."""
    return sizes is None or not all(isinstance(size, int) and size > 0 for size in sizes)


def _unless_of_nothing(op: Nodes, node: ir.Node, keep: Keep | None) -> None:
    """The layer, or zeros in the shapes of its outputs."""
    x, recurrence = node.inputs[0], node.inputs[2]
    prefix = next(output.name for output in node.outputs if output.name)
    for number, output in enumerate(node.outputs):
        output.name = output.name or f"{prefix}.output.{number}"  # an If has no outputs without a name
    zeros = Nodes()
    first, middle, last = (zeros.constant([axis]) for axis in range(3))
    of_x, of_recurrence = zeros("Shape", x), zeros("Shape", recurrence)
    places = ((of_x, first), (of_recurrence, first), (of_x, middle), (of_recurrence, last))
    sizes = [zeros("Gather", shape, index) for shape, index in places]
    results = [zeros_of(zeros, zeros("Concat", *sizes[index > 0 :], axis=0), x) for index in range(len(node.outputs))]
    is_empty = op("Equal", op("Size", x), op.constant(0))
    outputs = choose(op, node, is_empty, prefix, zeros, results)
    if keep is not None:
        keep(op, is_empty, outputs, [shape_of(output) for output in node.outputs])


def zeros_of(op: Nodes, shape: ir.Value, like: ir.Value | None) -> ir.Value:
    """Zeros of a computed shape, in the type of another value."""
    import onnx_ir as ir

    return op("ConstantOfShape", shape, value=ir.tensor(np.zeros(1, dtype_of(like, np.float32))))


def choose(
    op: Nodes, node: ir.Node, is_empty: ir.Value, prefix: str | None, zeros: Nodes, results: Sequence[ir.Value]
) -> Sequence[ir.Value]:
    """The outputs of a node, or other ones if a condition holds.

    Args:
        prefix: of the names in the branches, unique in the model.
        zeros: the nodes that compute the other outputs.
        results: the other outputs, of floats in the type of the node's first input.
    """
    import onnx_ir as ir

    x, layer = node.inputs[0], Nodes()
    outputs = layer.like(node, *node.inputs, outputs=len(results))
    for value in (*results, *outputs):
        value.type = ir.TensorType(ir.DataType.FLOAT if x is None or x.dtype is None else x.dtype)
    branches = {
        "then_branch": _branch(f"{prefix}.nothing", zeros, results),
        "else_branch": _branch(f"{prefix}.some", layer, outputs),
    }
    op.append(ir.node("If", [is_empty], branches, num_outputs=len(node.outputs)))
    return op[-1].outputs


def _branch(name: str, nodes: Nodes, outputs: Sequence[ir.Value]) -> ir.Graph:
    """A branch of an ``If``, whose values have names that no other graph has."""
    import onnx_ir as ir

    for number, value in enumerate(value for node in nodes for value in node.outputs):
        value.name = f"{name}.{number}"
    return ir.Graph([], outputs, nodes=nodes, name=name)


def other_if_empty(op: Nodes, node: ir.Node, value: ir.Value | None, replacement: ir.Value) -> None:
    """The outputs of a node, the first of them another value if a value has no elements."""
    first, *others = op.like(node, *node.inputs)
    is_empty = op("Equal", op("Size", value), op.constant(0))
    op("Where", is_empty, replacement, first)
    for output in others:
        op("Identity", output)
