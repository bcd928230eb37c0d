"""Values that are maps, as a classifier of scikit-learn gives its probabilities in: onnx_ir has no type for them.

A model is read without their types, which are kept beside it, and has them again when it is written. No encoder has
such values: a model that has goes to a backend as it came, or with the outputs that are wanted.
"""

from __future__ import annotations

from pathlib import Path

import onnx
import onnx_ir as ir
from onnx_ir.passes import common

_NOTE = "isorun.map"
_OPERATORS = frozenset(("CastMap", "DictVectorizer", "ZipMap"))


def deserialize(proto: onnx.ModelProto) -> ir.Model:
    """``onnx_ir.serde.deserialize_model`` for models that may have maps. The proto stays as it is."""
    kinds = {value.name: value.type for value in _values(proto) if "map(" in spell(value.type)}
    if kinds:
        whole, proto = proto, onnx.ModelProto()
        proto.CopyFrom(whole)
        for value in _values(proto):
            if value.name in kinds:
                value.ClearField("type")
    model = ir.serde.deserialize_model(proto)
    for end in _ends(model.graph):
        if end.name in kinds:
            end.meta[_NOTE] = kinds[end.name]
    return model


def restore(path: Path, model: ir.Model) -> None:
    """Put the types of maps back into what onnx_ir has written of a model."""
    kinds = {end.name: kind for end in _ends(model.graph) if (kind := type_of(end))}
    if kinds:
        proto = onnx.load(path, format="protobuf", load_external_data=False)
        for value in (*proto.graph.input, *proto.graph.output):
            if value.name in kinds:
                value.type.CopyFrom(kinds[value.name])
        path.write_bytes(proto.SerializeToString())


def type_of(value: ir.Value) -> onnx.TypeProto | None:
    """The type of an input or output with a map in it; ``None`` for any other."""
    return value.meta.get(_NOTE)


def spell(kind: onnx.TypeProto) -> str:
    """ONNX Runtime's name for a type."""
    which = kind.WhichOneof("value")
    if which == "map_type":
        return f"map({_element(kind.map_type.key_type)},{spell(kind.map_type.value_type)})"
    if which == "sequence_type":
        return f"seq({spell(kind.sequence_type.elem_type)})"
    if which == "optional_type":
        return f"optional({spell(kind.optional_type.elem_type)})"
    return f"tensor({_element(kind.tensor_type.elem_type)})"


def among(graph: ir.Graph) -> bool:
    """Whether some value of a graph is a map."""
    return any(map(type_of, _ends(graph))) or any(
        node.domain == "ai.onnx.ml" and node.op_type in _OPERATORS for node in graph
    )


def infer_shapes(model: ir.Model) -> None:
    """ONNX's inference of shapes, but where values are maps: onnx_ir does not read what is inferred of them."""
    if not among(model.graph):
        common.ShapeInferencePass(check_type=False, strict_mode=False)(model)


def _ends(graph: ir.Graph) -> tuple[ir.Value, ...]:
    return (*graph.inputs, *graph.outputs)


def _values(proto: onnx.ModelProto) -> list[onnx.ValueInfoProto]:
    return [*proto.graph.input, *proto.graph.output, *proto.graph.value_info]


def _element(number: int) -> str:
    return onnx.TensorProto.DataType.Name(number).lower()
