"""The values of fused operators as outputs of the graph, to find the first one that a backend computes wrongly."""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

from isorun.errors import UnsupportedModel
from isorun.graph.io.shape_inference import infer_shapes
from isorun.graph.ops import functions


@dataclass(frozen=True, slots=True)
class Operator:
    """A fused operator.

    Attributes:
        layer: the layer that it belongs to, counted from 0 as in the names of a checkpoint's weights: an attention
            begins one. ``None`` for an embedding and what else precedes the first attention.
        operator: its operator, such as ``"BiasGelu"``.
        node: its name.
        output: the name of the graph's output with its value.
    """

    layer: int | None
    operator: str
    node: str
    output: str


def expose(model: ir.Model) -> list[Operator]:
    """Make the value of every fused operator an output of the graph, in place.

    The outputs are ordered as they are computed, with those that no fused operator computes at the end, in their order.

    Args:
        model: in the fused form, padding included.

    Returns:
        The operators, in the same order.

    Raises:
        UnsupportedModel: the graph has no fused operator, or its padding is removed.
    """
    model.graph.sort()
    fused = [node for node in model.graph if functions.is_fused(node)]
    if not fused:
        raise UnsupportedModel("The model has no fused operator: only an encoder has layers to compare")
    if any(node.op_type == functions.PACKED for node in fused):
        raise UnsupportedModel("Layers cannot be compared after padding removal. Pass the original model")
    infer_shapes(model)
    operators, layer = [], None
    for node in fused:
        if node.op_type in functions.ATTENTIONS:
            layer = 0 if layer is None else layer + 1
        (value,) = node.outputs
        value.type = value.type or ir.TensorType(ir.DataType.FLOAT)
        assert value.name
        operators.append(Operator(layer, node.op_type, node.name or value.name, value.name))
    values = [node.outputs[0] for node in fused]
    others = [value for value in model.graph.outputs if value not in values]
    model.graph.outputs[:] = [*values, *others]
    return operators
