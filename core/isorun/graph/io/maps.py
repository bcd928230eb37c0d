"""Support for map types, which onnx_ir lacks; scikit-learn's classifiers use them for probabilities.

Their types are removed when a model is read, kept in ``meta``, and restored when it is written. No encoder has maps:
such a model reaches a backend unchanged, apart from the selection of outputs.
"""

from __future__ import annotations

from pathlib import Path

import onnx
import onnx_ir as ir

_META_KEY = "isorun.map"
_OPERATORS = frozenset(("CastMap", "DictVectorizer", "ZipMap"))


def deserialize(proto: onnx.ModelProto) -> ir.Model:
    """``onnx_ir.serde.deserialize_model`` for models that may have maps. The proto is unchanged."""
    kinds = {value.name: value.type for value in _values(proto) if has_map(value.type)}
    if kinds:
        original, proto = proto, onnx.ModelProto()
        proto.CopyFrom(original)
        for info in _values(proto):
            if info.name in kinds:
                info.ClearField("type")
    model = ir.serde.deserialize_model(proto)
    for value in _inputs_and_outputs(model.graph):
        if value.name in kinds:
            value.meta[_META_KEY] = kinds[value.name]
    return model


def restore_file(path: Path, model: ir.Model) -> None:
    """Restore map types in a file that onnx_ir has written."""
    if any(map(type_of, _inputs_and_outputs(model.graph))):
        proto = onnx.load(path, format="protobuf", load_external_data=False)
        restore(proto, model)
        path.write_bytes(proto.SerializeToString())


def restore(proto: onnx.ModelProto, model: ir.Model) -> None:
    """Restore map types in a model that onnx_ir has written, in place."""
    kinds = {value.name: kind for value in _inputs_and_outputs(model.graph) if (kind := type_of(value))}
    for value in (*proto.graph.input, *proto.graph.output):
        if value.name in kinds:
            value.type.CopyFrom(kinds[value.name])


def has_map(kind: onnx.TypeProto) -> bool:
    """Whether a type contains a map."""
    return "map(" in spell(kind)


def type_of(value: ir.Value) -> onnx.TypeProto | None:
    """The type of an input or output that contains a map; ``None`` for any other."""
    return value.meta.get(_META_KEY)


def spell(kind: onnx.TypeProto) -> str:
    """ONNX Runtime's name for a type."""
    which = kind.WhichOneof("value")
    if which == "map_type":
        return f"map({_element_type(kind.map_type.key_type)},{spell(kind.map_type.value_type)})"
    if which == "sequence_type":
        return f"seq({spell(kind.sequence_type.elem_type)})"
    if which == "optional_type":
        return f"optional({spell(kind.optional_type.elem_type)})"
    if which == "sparse_tensor_type":
        return f"sparse_tensor({_element_type(kind.sparse_tensor_type.elem_type)})"
    return f"tensor({_element_type(kind.tensor_type.elem_type)})"


def among(graph: ir.Graph) -> bool:
    """Whether a graph has map values."""
    return any(map(type_of, _inputs_and_outputs(graph))) or any(
        node.domain == "ai.onnx.ml" and node.op_type in _OPERATORS for node in graph
    )


def _inputs_and_outputs(graph: ir.Graph) -> tuple[ir.Value, ...]:
    return (*graph.inputs, *graph.outputs)


def _values(proto: onnx.ModelProto) -> list[onnx.ValueInfoProto]:
    return [*proto.graph.input, *proto.graph.output, *proto.graph.value_info]


def _element_type(number: int) -> str:
    return onnx.TensorProto.DataType.Name(number).lower()
