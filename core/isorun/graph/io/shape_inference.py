"""ONNX's shape inference on a graph of onnx_ir.

onnx_ir's own pass reads the whole inferred model again, functions and all, which takes longer than the inference. Here
only the inferred shapes and types are read.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable

import onnx
import onnx_ir as ir

from isorun.graph.io import maps, nodes

_LARGE = 1000  # bytes; larger initializers hold no shapes

_logger = logging.getLogger(__name__)


def infer_shapes(model: ir.Model) -> None:
    """Set the shapes and types that ONNX infers, in place.

    What the model says of computed values is ignored if something contradicts it, as runtimes ignore it. Beyond a node
    that contradicts its inputs, the rest is inferred. The model is unchanged if ONNX cannot read it.
    """
    proto = without_weights(model)
    inferred = _inferred(proto, strict=True)
    if inferred is None:
        _forget_computed(proto.graph)
        inferred = _inferred(proto, strict=True) or _inferred(proto)
    if inferred is not None:
        _set(model.graph, model.graph.inputs, inferred)


def correct_outputs(model: ir.Model) -> list[ir.Value]:
    """Replace what a model declares of its outputs' shapes where ONNX infers another rank or size, in place.

    Exporters write the sizes of their example there, which runtimes ignore.

    Returns:
        The outputs of whose declared rank and fixed sizes ONNX does not infer all.
    """
    outputs = [value for value in model.graph.outputs if value.producer() is not None and value.shape is not None]
    if not outputs:
        return []
    proto = without_weights(model)
    _forget_computed(proto.graph)
    inferred = _inferred(proto)
    if inferred is None:
        return outputs
    shapes = {
        info.name: ir.serde.deserialize_type_proto_for_shape(info.type)
        for info in inferred.output
        if not maps.has_map(info.type)
    }
    unconfirmed = []
    named = {str(size) for value in model.graph.inputs for size in value.shape or () if not isinstance(size, int)}
    for value in outputs:
        declared, computed = nodes.needed(value.shape), shapes.get(value.name or "")
        if computed is not None and (shape := _agreed(declared, computed, named)) != declared:
            _logger.info("Output %r is declared as %s and computed as %s", value.name, declared, shape)
            value.shape = shape
        if computed is None or any(
            not isinstance(size, int) and size != stated and (isinstance(stated, int) or stated.value in named)
            for stated, size in zip(value.shape or (), computed, strict=True)
        ):
            unconfirmed.append(value)
    return unconfirmed


def _inferred(proto: onnx.ModelProto, *, strict: bool = False) -> onnx.GraphProto | None:
    """The graph with what ONNX infers; ``None`` if it cannot."""
    for data_prop in (True, False):  # it computes sums of shapes as if they had one rank, and fails (1.23)
        try:
            return onnx.shape_inference.infer_shapes(
                proto, check_type=strict, strict_mode=strict, data_prop=data_prop
            ).graph
        except (onnx.shape_inference.InferenceError, RuntimeError, TypeError, ValueError) as error:
            _logger.info("Shape inference failed: %s", error)
    return None


def _forget_computed(graph: onnx.GraphProto) -> None:
    """Remove the shapes of values between nodes and of outputs, in subgraphs too."""
    del graph.value_info[:]
    for info in graph.output:
        if info.type.HasField("tensor_type"):
            info.type.tensor_type.ClearField("shape")
    for attribute in (attribute for node in graph.node for attribute in node.attribute):
        for subgraph in ([attribute.g] if attribute.HasField("g") else []) + [*attribute.graphs]:
            _forget_computed(subgraph)


def _agreed(declared: ir.Shape, computed: ir.Shape, named: Collection[str]) -> ir.Shape:
    """The declared sizes, except where others are known: fixed ones, and those with the name of an input's."""
    known = [size if isinstance(size, int) or size.value in named else None for size in computed]
    if len(declared) != len(known):
        return ir.Shape(known)
    return ir.Shape(
        [
            size if size is not None and (isinstance(stated, int) or stated.value is None) else stated
            for stated, size in zip(declared, known, strict=True)
        ]
    )


def without_weights(model: ir.Model) -> onnx.ModelProto:
    """A model whose large initializers are inputs."""
    graph, weights = model.graph, []
    for value in graph.initializers.values():
        tensor = value.const_value
        if tensor is not None and (value.shape is None or value.shape.dims != tensor.shape.dims):
            value.shape = ir.Shape(tensor.shape.numpy())
        if tensor is not None and value.dtype != tensor.dtype:
            value.dtype = tensor.dtype
        if tensor is None or tensor.nbytes > _LARGE:
            weights.append(value)
    inputs = [*graph.inputs, *(value for value in weights if not value.is_graph_input())]
    names = {value.name for value in weights}
    small = [value for value in graph.initializers.values() if value.name not in names]
    view = ir.GraphView(
        inputs, graph.outputs, nodes=list(graph), initializers=small, opset_imports=graph.opset_imports, name=graph.name
    )
    proto = onnx.ModelProto(ir_version=model.ir_version, graph=ir.serde.serialize_graph(view))  # type: ignore[arg-type]
    maps.restore(proto, model)
    proto.opset_import.extend(
        onnx.OperatorSetIdProto(domain=domain, version=version) for domain, version in model.opset_imports.items()
    )
    proto.functions.extend(
        ir.serde.serialize_function(function, create_value_info=False) for function in model.functions.values()
    )
    return proto


def _set(graph: ir.Graph, inputs: Iterable[ir.Value], proto: onnx.GraphProto) -> None:
    infos = (*proto.value_info, *proto.input, *proto.output)
    types = {info.name: info.type for info in infos if not maps.has_map(info.type)}
    for value in (*inputs, *graph.outputs, *(output for node in graph for output in node.outputs)):
        if value is not None and value.name in types:
            _set_type(value, types[value.name])
    for node, written in zip(graph, proto.node, strict=True):
        subgraphs = {attribute.name: attribute for attribute in written.attribute}
        for attribute in node.attributes.values():
            if attribute.type == ir.AttributeType.GRAPH:
                _set(attribute.as_graph(), attribute.as_graph().inputs, subgraphs[attribute.name].g)
            elif attribute.type == ir.AttributeType.GRAPHS:
                for subgraph, part in zip(attribute.as_graphs(), subgraphs[attribute.name].graphs, strict=True):
                    _set(subgraph, subgraph.inputs, part)


def _set_type(value: ir.Value, proto: onnx.TypeProto) -> None:
    shape, kind = ir.serde.deserialize_type_proto_for_shape(proto), ir.serde.deserialize_type_proto_for_type(proto)
    if shape is not None and shape != value.shape:
        value.shape = shape
    if kind is not None and kind != value.type:
        value.type = kind
