"""Hidden states that lie (sequence, batch, width), as PyTorch's ``MultiheadAttention`` has them inside, laid (batch,
sequence, width) outside of the attention.

A transposition of the two goes down past every layer that works on the last dimension alone, and up past the dense
layer after an attention, until two meet and cancel out. What is left of them is inside of attentions, which are fused
by what they compute.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir
from onnx_ir.passes import common

from isorun.graph.analysis.evaluate import data_inputs, is_constant, sizes
from isorun.graph.matching import subgraph
from isorun.graph.matching.subgraph import DenseLayer

_PERM = [1, 0, 2]
_OF_TWO = frozenset(("Add", "Div", "Max", "Min", "Mul", "Pow", "PRelu", "Sub"))
_OF_ONE = frozenset(
    (
        *("Abs", "Cast", "Elu", "Erf", "Exp", "Gelu", "HardSigmoid", "HardSwish", "LeakyRelu", "Log", "Mish", "Neg"),
        *("Reciprocal", "Relu", "Selu", "Sigmoid", "Softplus", "Sqrt", "Tanh", "ThresholdedRelu"),
    )
)


def rewrite(model: ir.Model) -> None:
    """Move such transpositions, in place. What the graph computes stays as it is."""
    found = [node for node in model.graph if _is_transposition(node)]
    if not found:
        return
    for node in found:
        pending = [node]
        while pending:
            each = pending.pop()
            for use in each.outputs[0].consumers():
                pending.extend(_sink(each.outputs[0], use))
        if node.outputs[0].uses() and (layer := _dense_behind(node.inputs[0])) is not None:
            subgraph.replace(node.outputs[0], layer.transposed(node))
    common.RemoveUnusedNodesPass()(model)


def _is_transposition(node: ir.Node | None) -> bool:
    if node is None or node.op_type != "Transpose" or node.domain != "" or "perm" not in node.attributes:
        return False
    return list(node.attributes["perm"].as_ints()) == _PERM


def _transposed(value: ir.Value) -> ir.Value | None:
    """What a value is the transposition of."""
    node = value.producer()
    return node.inputs[0] if node is not None and _is_transposition(node) else None


def _sink(value: ir.Value, use: ir.Node) -> list[ir.Node]:
    """Have one of its users take what was transposed, and transpose what that gives; the new transpositions."""
    if use.domain != "" or use.graph is None:
        return []
    source = _transposed(value)
    assert source is not None
    if _is_transposition(use):
        if not use.outputs[0].is_graph_output() or (source.producer() is not None and not source.is_graph_output()):
            subgraph.replace(use.outputs[0], source)
            use.graph.remove(use, safe=True)
        return []
    if use.op_type in _OF_TWO:
        inputs = [_laid_alike(each, use) for each in use.inputs]
    elif use.op_type in _OF_ONE:
        inputs = [source]
    elif use.op_type == "MatMul" and use.inputs[0] is value and _is_matrix(use.inputs[1]):
        inputs = [source, use.inputs[1]]
    elif use.op_type == "LayerNormalization" and use.inputs[0] is value and _normalizes_rows(use):
        inputs = [source, *use.inputs[1:]]
    else:
        return []
    if None in inputs:
        return []
    moved = ir.node(use.op_type, inputs, attributes=use.attributes, name=use.name)
    transposition = ir.node("Transpose", moved.outputs, {"perm": _PERM})
    use.graph.insert_before(use, [moved, transposition])
    old, new = use.outputs[0], transposition.outputs[0]
    new.type, new.shape = old.type, old.shape
    moved.outputs[0].type = old.type
    moved.outputs[0].shape = _swapped(old.shape)
    subgraph.replace(old, new)
    use.graph.remove(use, safe=True)
    return [transposition]


def _laid_alike(value: ir.Value | None, use: ir.Node) -> ir.Value | None:
    """An operand of a sum or product, transposed: ``None`` where it cannot be had without a cost."""
    if value is None:
        return None
    if is_constant(value):
        *before, _ = (1, *sizes(value))
        if len(before) <= 3 and all(size == 1 for size in before):
            return value
    if (source := _transposed(value)) is not None:
        return source
    if (layer := _dense_behind(value)) is not None:
        return layer.transposed(use)
    if subgraph.rank(value) == 3 and not data_inputs(value):  # positions, say, which are one row's
        laid = subgraph.insert(use, "Transpose", [value], perm=_PERM)
        laid.type, laid.shape = value.type, _swapped(value.shape)
        return laid
    return None


@dataclass(frozen=True)
class _Layer:
    """A dense layer that alone gives a value of three dimensions.

    Attributes:
        dense: the layer.
        shape: the shape that what it gives is brought to; ``None`` where it has it already.
        value: what is given.
    """

    dense: DenseLayer
    shape: ir.Value | None
    value: ir.Value

    def transposed(self, before: ir.Node) -> ir.Value:
        """The transposition of what is given, by one of what is taken."""
        rows = self.dense.input
        if self.shape is not None:
            place = subgraph.Before(before)
            first, two = (place.constant(str(number), np.array([number], np.int64)) for number in (0, 2))
            width = place.constant("width", np.array(sizes(self.dense.weight)[:1], np.int64))
            outer = subgraph.insert(before, "Slice", [self.shape, first, two])
            rows = subgraph.insert(before, "Reshape", [rows, subgraph.insert(before, "Concat", [outer, width], axis=0)])
        laid = _transposed(rows) or subgraph.insert(before, "Transpose", [rows], perm=_PERM)
        result = subgraph.insert(before, "MatMul", [laid, self.dense.weight])
        if self.dense.bias is not None:
            result = subgraph.insert(before, "Add", [result, self.dense.bias])
        for each in (rows, laid, result):
            each.type, each.shape = self.value.type, each.shape or ir.Shape([None] * 3)
        return result


def _dense_behind(value: ir.Value | None) -> _Layer | None:
    if value is None or len(value.uses()) != 1 or value.is_graph_output():
        return None
    if (dense := subgraph.dense(value)) is not None:
        return _Layer(dense, None, value) if subgraph.rank(dense.input) == 3 else None
    node = value.producer()
    if node is None or node.op_type != "Reshape" or node.domain != "":
        return None
    flat, shape = node.inputs
    dense = subgraph.dense(flat)
    if dense is None or shape is None or shape.shape is None or list(shape.shape) != [3]:
        return None
    return _Layer(dense, shape, value) if subgraph.rank(dense.input) == 2 else None


def _is_matrix(value: ir.Value | None) -> bool:
    return value is not None and is_constant(value) and len(sizes(value)) == 2


def _normalizes_rows(node: ir.Node) -> bool:
    return node.attributes.get_int("axis", -1) in (-1, 2) and len(node.outputs) == 1


def _swapped(shape: ir.Shape | None) -> ir.Shape | None:
    return None if shape is None or len(shape) != 3 else ir.Shape([shape[1], shape[0], shape[2]])
