"""Graphs in opsets before 13, brought to 13 by ONNX's own converter."""

from __future__ import annotations

import onnx_ir as ir
from onnx import checker, version_converter

from isorun.errors import UnsupportedModel

FIRST_READ = 13
"""The first opset of ONNX in which graphs are fused, lowered and moved from one to another."""

FIRST_UPGRADED = 9
"""The first that is brought there; earlier ones have no shapes that are computed."""

_FIRST_WITH_OWN_WEIGHTS = 4  # the version of the format; before, every initializer had to be an input too
_INLINE_LIMIT = 1024  # bytes; what the converter reads, such as axes, is smaller


def upgrade(model: ir.Model) -> None:
    """Bring a graph to opset 13, in place, where it is in an earlier one. Weights are neither copied nor read.

    Raises:
        UnsupportedModel: ONNX's converter cannot bring it there. The graph is as it was.
    """
    opset = model.graph.opset_imports.get("", FIRST_READ)
    if opset >= FIRST_READ:
        return
    stripped, weights = _without_weights(model)
    proto = ir.serde.serialize_model(stripped)
    try:
        checker.check_model(proto)  # the converter crashes on an attribute of the wrong type
        converted = version_converter.convert_version(proto, FIRST_READ)
    except (RuntimeError, checker.ValidationError, version_converter.ConvertError) as error:
        raise UnsupportedModel(
            f"it is in opset {opset}, and ONNX's converter cannot bring it to {FIRST_READ}: {error}"
        ) from error
    graph = ir.serde.deserialize_model(converted).graph
    for value in [value for value in graph.inputs if value.name in weights]:
        value.const_value = weights[value.name]
        graph.register_initializer(value)
    _declare(graph, [value.name for value in _given(model)])
    model.graph = graph
    model.ir_version = max(model.ir_version, _FIRST_WITH_OWN_WEIGHTS)


def _given(model: ir.Model) -> list[ir.Value]:
    """What a caller gives, or may give."""
    graph = model.graph
    if model.ir_version >= _FIRST_WITH_OWN_WEIGHTS:
        return list(graph.inputs)
    return [value for value in graph.inputs if value.name not in graph.initializers]


def _without_weights(model: ir.Model) -> tuple[ir.Model, dict[str | None, ir.TensorProtocol]]:
    """A copy of a model with its weights as inputs, and the weights. The converter would serialize them."""
    graph = model.graph.clone()
    weights: dict[str | None, ir.TensorProtocol] = {}
    for name, value in list(graph.initializers.items()):
        tensor = value.const_value
        if tensor is None or tensor.nbytes <= _INLINE_LIMIT:
            continue
        weights[name] = tensor
        del graph.initializers[name]
        value.const_value, value.dtype = None, tensor.dtype
        value.shape = tensor.shape  # type: ignore[assignment]  # a constant's shape is one
        if value not in graph.inputs:
            graph.inputs.append(value)
    return ir.Model(graph, ir_version=max(model.ir_version, _FIRST_WITH_OWN_WEIGHTS)), weights


def _declare(graph: ir.Graph, names: list[str | None]) -> None:
    inputs = {value.name: value for value in graph.inputs}
    graph.inputs.clear()
    graph.inputs.extend(inputs[name] for name in names)
