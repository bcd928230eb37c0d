"""Rows of the tables of known faults for inputs without elements, which several runtimes share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from isorun.plugin import Fault
from isorun_backends.nodes import branch, constant, new_node

if TYPE_CHECKING:
    import onnx_ir as ir

_FIRST_OPSET = 9  # without ConstantOfShape before
_GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}


def recurrent_of_nothing(operator: str, versions: str) -> Fault:
    """A recurrent layer of a batch of no rows, or of no steps."""
    shape = ", ".join("ab"), ", ".join("cdef")
    weights = f"float[1, {_GATES[operator] * 2}, 2] w"
    return Fault(
        operator=operator,
        condition="a batch or a length that may be 0",
        result="it ends the process",
        versions=versions,
        applies=_may_be_of_nothing,
        rewrite=_unless_of_nothing,
        model=(
            f"g (float[{shape[0]}, 2] x, {weights}) => (float[{shape[1]}] y) "
            f"{{ y = {operator} <hidden_size = 2> (x, w, w) }}"
        ),
        feeds={"x": np.ones((3, 0, 2), np.float32), "w": np.ones((1, _GATES[operator] * 2, 2), np.float32)},
        expected=[np.zeros((3, 1, 0, 2), np.float32)],
        ends_process=True,
    )


def _may_be_of_nothing(node: ir.Node, opset: int) -> bool:
    x = node.inputs[0]
    if opset < _FIRST_OPSET:
        return False
    if x is None or x.shape is None:
        return True
    return not all(isinstance(size, int) and size > 0 for size in list(x.shape)[:2])


def _unless_of_nothing(node: ir.Node) -> list[ir.Node]:
    """The layer, or zeros in the shapes of its outputs."""
    import onnx_ir as ir

    x, recurrence = node.inputs[0], node.inputs[2]
    prefix = next(output.name for output in node.outputs if output.name)
    for number, output in enumerate(node.outputs):
        output.name = output.name or f"{prefix}.output.{number}"  # an If has no outputs without a name
    assert x is not None
    kind = ir.DataType.FLOAT if x.dtype is None else x.dtype
    first, middle, last = constant([0]), constant([1]), constant([2])
    of_x, of_recurrence = new_node("Shape", [x]), new_node("Shape", [recurrence])
    sizes = [
        new_node("Gather", [shape.outputs[0], index.outputs[0]])
        for shape, index in ((of_x, first), (of_recurrence, first), (of_x, middle), (of_recurrence, last))
    ]
    zeros = [first, middle, last, of_x, of_recurrence, *sizes]
    for index in range(len(node.outputs)):
        shape = new_node("Concat", [size.outputs[0] for size in sizes[index > 0 :]], {"axis": 0})
        zeros += [shape, new_node("ConstantOfShape", shape.outputs, {"value": ir.tensor(np.zeros(1, kind.numpy()))})]
    results = [part.outputs[0] for part in zeros if part.op_type == "ConstantOfShape"]
    layer = ir.node(node.op_type, node.inputs, node.attributes, num_outputs=len(node.outputs))
    for value in (*results, *layer.outputs):
        value.type = ir.TensorType(kind)
    count, none = new_node("Size", [x]), constant(0)
    is_empty = new_node("Equal", [count.outputs[0], none.outputs[0]])
    branches = {
        "then_branch": branch(f"{prefix}.nothing", zeros, results),
        "else_branch": branch(f"{prefix}.some", [layer], layer.outputs),
    }
    return [count, none, is_empty, ir.node("If", is_empty.outputs, branches, num_outputs=len(node.outputs))]
