"""The precision that a graph's types give its matrix products."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import onnx

_PRODUCTS = frozenset({"Attention", "Conv", "FusedMatMul", "Gemm", "MatMul"})


def graph_precision(graph: onnx.GraphProto) -> str:
    """The types of the weights of products, such as ``fp16`` or ``fp16+fp32``; ``fp32`` for a graph without any."""
    import onnx

    names: dict[int, str] = {
        onnx.TensorProto.DOUBLE: "fp64",
        onnx.TensorProto.FLOAT: "fp32",
        onnx.TensorProto.FLOAT16: "fp16",
        onnx.TensorProto.BFLOAT16: "bf16",
    }
    types = {tensor.name: tensor.data_type for tensor in graph.initializer}
    read = {types.get(name) for node in graph.node if node.op_type in _PRODUCTS for name in node.input}
    return "+".join(sorted(names[type] for type in read if type in names)) or "fp32"
