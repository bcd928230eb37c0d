"""Conversion of graphs in opsets before 13 to 13, by ONNX's version converter."""

from __future__ import annotations

import onnx_ir as ir
from onnx import checker, version_converter

from isorun.errors import UnsupportedModel
from isorun.graph.io import maps
from isorun.graph.io.shape_inference import without_weights

FIRST_READ = 13
"""The first opset in which graphs are fused, lowered, and converted to other opsets."""

FIRST_UPGRADED = 9
"""The first opset that is converted; earlier ones have no computed shapes."""

_FIRST_IR_VERSION = 4  # before, every initializer had to be an input too


def upgrade(model: ir.Model) -> None:
    """Convert a graph in an earlier opset to 13, in place. Weights are neither copied nor read.

    Raises:
        UnsupportedModel: ONNX's converter failed. The graph is unchanged.
    """
    opset = model.graph.opset_imports.get("", FIRST_READ)
    if opset >= FIRST_READ:
        return
    proto = without_weights(model)
    proto.ir_version = max(model.ir_version, _FIRST_IR_VERSION)
    proto.graph.doc_string = model.graph.doc_string or ""
    del proto.functions[:]
    try:
        checker.check_model(proto)  # the converter crashes on an attribute of the wrong type
        converted = version_converter.convert_version(proto, FIRST_READ)
    except (RuntimeError, checker.ValidationError, version_converter.ConvertError) as error:
        raise UnsupportedModel(
            f"ONNX's version converter cannot convert it from opset {opset} to {FIRST_READ}: {error}"
        ) from error
    graph = maps.deserialize(converted).graph
    for value in list(graph.inputs):
        weight = model.graph.initializers.get(value.name or "")
        if weight is not None and value.name not in graph.initializers:
            value.const_value = weight.const_value
            graph.register_initializer(value)
    inputs = {value.name: value for value in graph.inputs}
    graph.inputs[:] = [inputs[value.name] for value in feedable_inputs(model)]
    model.graph = graph
    model.ir_version = max(model.ir_version, _FIRST_IR_VERSION)


def feedable_inputs(model: ir.Model) -> list[ir.Value]:
    """The inputs that a caller feeds or may override. Before IR version 4, those with initializers are constants."""
    graph = model.graph
    if model.ir_version >= _FIRST_IR_VERSION:
        return list(graph.inputs)
    return [value for value in graph.inputs if value.name not in graph.initializers]
