"""Conversion of hidden states to (batch, sequence, width), from (sequence, batch, width), as in PyTorch's
``MultiheadAttention``, and from (batch, width, sequence), as between convolutions (SqueezeBERT).

A transposition moves down past every operator that works in either layout, and up past the dense layer after an
attention, until two cancel. The remaining ones are inside attentions, which are recognized numerically.
"""

from __future__ import annotations

import onnx_ir as ir
from onnx_ir.passes import common

from isorun.graph.analysis.evaluate import array, data_inputs, is_constant, sizes
from isorun.graph.io.nodes import needed
from isorun.graph.matching import subgraph

_SEQUENCE_FIRST, _WIDTH_FIRST = [1, 0, 2], [0, 2, 1]
"""The orders of axes, each its own inverse."""
_BINARY = frozenset(("Add", "Div", "Max", "Min", "Mul", "Pow", "PRelu", "Sub"))
_UNARY = frozenset(
    (
        *("Abs", "Cast", "Elu", "Erf", "Exp", "Gelu", "HardSigmoid", "HardSwish", "LeakyRelu", "Log", "Mish", "Neg"),
        *("Reciprocal", "Relu", "Selu", "Sigmoid", "Softplus", "Sqrt", "Tanh", "ThresholdedRelu"),
    )
)


def rewrite(model: ir.Model) -> None:
    """Move the transpositions, in place. The graph's results are unchanged."""
    transpositions = [node for node in model.graph if _perm(node)]
    if not transpositions:
        return
    for node in transpositions:
        pending = [node]
        while pending:
            output = pending.pop().outputs[0]
            for use in output.consumers():
                pending.extend(_move_past(output, use))
        if _perm(node) != _SEQUENCE_FIRST:
            continue
        if node.outputs[0].uses() and (value := _transposed_layer(node.inputs[0], node)) is not None:
            subgraph.replace(node.outputs[0], value)
    common.RemoveUnusedNodesPass()(model)


def _perm(node: ir.Node | None) -> list[int] | None:
    """The order of axes of a transposition between layouts; ``None`` for any other node."""
    if node is None or node.op_type != "Transpose" or node.domain != "" or "perm" not in node.attributes:
        return None
    perm = list(node.attributes["perm"].as_ints())
    return perm if perm in (_SEQUENCE_FIRST, _WIDTH_FIRST) else None


def _transposed(value: ir.Value, perm: list[int]) -> ir.Value | None:
    """The value before transposition; ``None`` for a value that is not transposed in this way."""
    node = value.producer()
    return node.inputs[0] if node is not None and _perm(node) == perm else None


def _move_past(value: ir.Value, use: ir.Node) -> list[ir.Node]:
    """Move a transposition past one of its readers, and return the new transpositions."""
    perm = _perm(value.producer())
    if use.domain != "" or use.graph is None or perm is None:
        return []
    source = needed(_transposed(value, perm))
    if _perm(use) == perm:
        if not use.outputs[0].is_graph_output() or (source.producer() is not None and not source.is_graph_output()):
            subgraph.replace_node(use, source)
        return []
    keeps_width = perm == _SEQUENCE_FIRST and use.inputs[0] is value
    if use.op_type in _BINARY:
        inputs = [_transposed_operand(operand, use, perm) for operand in use.inputs]
    elif use.op_type in _UNARY:
        inputs = [source]
    elif use.op_type == "MatMul" and keeps_width and is_constant(use.inputs[1]) and len(sizes(use.inputs[1])) == 2:
        inputs = [source, use.inputs[1]]
    elif use.op_type == "LayerNormalization" and keeps_width and len(use.outputs) == 1:
        inputs = [source if use.attributes.get_int("axis", -1) in (-1, 2) else None, *use.inputs[1:]]
    else:
        return []
    if None in inputs:
        return []
    moved = ir.node(use.op_type, inputs, attributes=use.attributes, name=use.name)
    transposition = ir.node("Transpose", moved.outputs, {"perm": perm})
    use.prepend([moved, transposition])
    moved.outputs[0].type, moved.outputs[0].shape = use.outputs[0].type, _swapped(use.outputs[0].shape, perm)
    subgraph.replace_node(use, transposition.outputs[0])
    return [transposition]


def _transposed_operand(value: ir.Value | None, use: ir.Node, perm: list[int]) -> ir.Value | None:
    """An operand of a sum or product, transposed; ``None`` if that would add a transposition of hidden states."""
    if value is None:
        return None
    if is_constant(value) and len(sizes(value)) <= 3:
        *leading, last = (1, *sizes(value))
        if all(size == 1 for size in leading) and (perm == _SEQUENCE_FIRST or last == 1):
            return value
        if perm == _WIDTH_FIRST and last == 1 and all(size == 1 for size in leading[:-1]):  # a value for each channel
            name = f"{value.name}.by_channel"
            return subgraph.Before(use).constant(name, array(value).reshape(-1))
    if (source := _transposed(value, perm)) is not None:
        return source
    if perm == _SEQUENCE_FIRST and (result := _transposed_layer(value, use)) is not None:
        return result
    if subgraph.rank(value) == 3 and not data_inputs(value):  # positions, for example, which are the same for every row
        result = subgraph.Before(use)("Transpose", value, perm=perm)
        result.type, result.shape = value.type, _swapped(value.shape, perm)
        return result
    return None


def _transposed_layer(value: ir.Value | None, before: ir.Node) -> ir.Value | None:
    """A three-dimensional value transposed, by transposing the input of the dense layer that computes it, possibly
    before its rows are restored; ``None`` if none does, or if anything else reads it."""
    if value is None or len(value.uses()) != 1 or value.is_graph_output():
        return None
    node, layer, shape = value.producer(), subgraph.dense(value), None
    if layer is None and node is not None and node.op_type == "Reshape" and node.domain == "":
        layer, shape = subgraph.dense(node.inputs[0]), node.inputs[1]
        if shape is None or shape.shape is None or list(shape.shape) != [3]:
            return None
    if layer is None or subgraph.rank(layer.input) != (3 if shape is None else 2):
        return None
    rows, op = layer.input, subgraph.Before(before)
    if shape is not None:
        width = sizes(layer.weight)[:1]
        rows = op("Reshape", rows, op("Concat", op("Slice", shape, [0], [2]), width, axis=0))
    transposed = _transposed(rows, _SEQUENCE_FIRST) or op("Transpose", rows, perm=_SEQUENCE_FIRST)
    result = op.dense(transposed, layer.weight, layer.bias)
    for computed in (rows, transposed, result):
        computed.type, computed.shape = value.type, computed.shape or ir.Shape([None] * 3)
    return result


def _swapped(shape: ir.Shape | None, perm: list[int]) -> ir.Shape | None:
    return None if shape is None or len(shape) != 3 else ir.Shape([shape[axis] for axis in perm])
