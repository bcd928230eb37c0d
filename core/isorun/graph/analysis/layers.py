"""The layers of a graph with weight matrices: precision, sparsity, and operations."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from isorun.graph.io import nodes
from isorun.graph.io.nodes import needed
from isorun.graph.ops import functions

BLOCK = 4
"""The number of weights in a block: as many 8-bit products as VNNI's ``vpdpbusd`` adds to one sum."""

PRECISIONS = {
    ir.DataType.FLOAT: "fp32",
    ir.DataType.DOUBLE: "fp64",
    ir.DataType.FLOAT16: "fp16",
    ir.DataType.BFLOAT16: "bf16",
}
_STORED = frozenset(("INT8", "UINT8", "INT4", "UINT4", "FLOAT8E4M3FN", "FLOAT8E5M2", "FLOAT4E2M1"))

QUANTIZING = frozenset(
    (
        *("QuantizeLinear", "DynamicQuantizeLinear", "MatMulInteger", "QLinearMatMul", "ConvInteger", "QLinearConv"),
        *("QAttention", "QGemm", "DynamicQuantizeMatMul", "MatMulIntegerToFloat"),
    )
)
"""Operators with 8-bit activations. ``DequantizeLinear`` alone means 8-bit weights only."""

_MICROSOFT = "com.microsoft"
# The indices of a dense layer's weights (input, output) and of their zero point among a node's inputs.
_DENSE: dict[tuple[str, str], tuple[int, int | None]] = {
    ("", "MatMul"): (1, None),
    ("", "Gemm"): (1, None),
    ("", "MatMulInteger"): (1, 3),
    ("", "QLinearMatMul"): (3, 5),
    (_MICROSOFT, "Attention"): (1, None),
    (_MICROSOFT, "DynamicQuantizeMatMul"): (1, 3),
    (_MICROSOFT, "FusedGemm"): (1, None),
    (_MICROSOFT, "FusedMatMul"): (1, None),
    (_MICROSOFT, "MatMulIntegerToFloat"): (1, 5),
    (_MICROSOFT, "QAttention"): (1, 7),
    (functions.DOMAIN, functions.ATTENTION): (2, None),
}
_PASS_THROUGH = frozenset(("Cast", "Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze"))
_SPARSE = 0.1  # trained weights have almost no zeros; rounding to 8 bits yields a few percent
_IN_BLOCKS = 0.9  # of the zeros beyond those expected by chance


@dataclass(frozen=True, slots=True)
class Layer:
    """A node and one of its constant matrices.

    Attributes:
        name: the node's name.
        operator: the operator, with its domain unless that is ONNX's.
        kind: ``"dense"``, ``"embedding"`` (a lookup table), or ``"other"``.
        weight: the matrix's name.
        shape: its dimensions as stored: (input, output) for a dense layer, unless ``transposed``.
        transposed: whether a dense layer's matrix is stored as (output, input).
        precision: the type of its elements: ``fp32``, ``fp16``, ``int8`` ...
        activations: the type of the activations that it is multiplied by; ``None`` if unknown.
        bytes: its size.
        sparsity: the fraction of its elements that represent 0.
        zero_blocks: for a dense layer, the fraction of its blocks of :data:`BLOCK` weights (consecutive inputs of one
            output) that are all 0; ``None`` if the block size does not divide the input.
        pattern: ``"dense"``, ``"unstructured"``, or ``"block4"`` if the zeros form such blocks.
        operations: for a dense layer, multiplications and additions per vector: 2 for each weight. Otherwise 0.
        per: ``"token"`` or ``"sequence"``: what a dense layer's vectors represent in the fused form; ``None`` if
            unknown.
    """

    name: str
    operator: str
    kind: str
    weight: str
    shape: tuple[int, ...]
    transposed: bool
    precision: str
    activations: str | None
    bytes: int
    sparsity: float
    zero_blocks: float | None
    pattern: str
    operations: int
    per: str | None


@dataclass(frozen=True, slots=True)
class Matrix:
    """A constant that a node reads.

    Attributes:
        value: the stored constant.
        zero: its zero point; ``None`` if it has none.
        transposed: whether it is transposed before the node reads it.
    """

    value: ir.Value
    zero: ir.Value | None = None
    transposed: bool = False


def layers(model: ir.Model) -> tuple[Layer, ...]:
    """The layers, in graph order. Every matrix is read once. Shapes must have been inferred."""
    encoder = any(functions.is_fused(node) for node in model.graph)
    measured: dict[tuple[ir.Value, bool], tuple[float, float | None]] = {}
    result = []
    for node in model.graph.all_nodes():
        for index, matrix in matrices(node):
            tensor = needed(matrix.value.const_value)
            kind, turned = _kind(node, index), matrix.transposed != turns(node)
            if (matrix.value, turned) not in measured:
                measured[matrix.value, turned] = _zeros(tensor, matrix.zero, turned, blocks=kind == "dense")
            sparsity, blocks = measured[matrix.value, turned]
            data = node.inputs[0] if kind == "dense" and index else None
            result.append(
                Layer(
                    name=node.name or node.outputs[0].name or "",
                    operator=nodes.operator(node),
                    kind=kind,
                    weight=matrix.value.name or "",
                    shape=tuple(int(size) for size in tensor.shape),  # type: ignore[arg-type]
                    transposed=turned and kind == "dense",
                    precision=precision(tensor.dtype),
                    activations=_activations(data),
                    bytes=tensor.nbytes,
                    sparsity=sparsity,
                    zero_blocks=blocks if kind == "dense" else None,
                    pattern=_pattern(sparsity, blocks if kind == "dense" else None),
                    operations=2 * tensor.size if kind == "dense" else 0,
                    per=_per(data) if encoder else None,
                )
            )
    return tuple(result)


def matrices(node: ir.Node) -> Iterator[tuple[int, Matrix]]:
    """The weights of a node with two or more dimensions, each with its input index."""
    if node.op_type in _PASS_THROUGH or node.op_type == "DequantizeLinear":
        return
    for index, value in enumerate(node.inputs):
        matrix = stored(value)
        if matrix is None:
            continue
        tensor = matrix.value.const_value
        if (
            tensor is not None
            and len(tensor.shape) >= 2
            and (tensor.dtype in PRECISIONS or tensor.dtype.name in _STORED)
        ):
            if matrix.zero is None:
                zero = _DENSE.get((node.domain, node.op_type), (0, None))[1]
                point = node.inputs[zero] if zero is not None and zero < len(node.inputs) else None
                matrix = Matrix(matrix.value, point, matrix.transposed)
            yield index, matrix


def stored(value: ir.Value | None) -> Matrix | None:
    """The stored constant of a value, before dequantization, casts and transpositions; ``None`` if it has none."""
    zero, transposed = None, False
    while value is not None:
        if value.const_value is not None:
            return None if value.is_graph_input() else Matrix(value, zero, transposed)
        node = value.producer()
        if node is None or node.domain not in ("", _MICROSOFT):
            return None
        if node.op_type == "DequantizeLinear":
            zero = node.inputs[2] if len(node.inputs) > 2 else None
        elif node.op_type == "Transpose":
            transposed = not transposed
        elif node.op_type not in _PASS_THROUGH:
            return None
        value = node.inputs[0]
    return None


def precision(dtype: ir.DataType) -> str:
    """The precision with a type's elements, such as ``fp32``."""
    return PRECISIONS.get(dtype, dtype.name.lower())


def is_dense(node: ir.Node, index: int) -> bool:
    """Whether the constant at an input index is a dense layer's weights."""
    indices = _DENSE.get((node.domain, node.op_type))
    return indices is not None and (index == indices[0] or (node.op_type == "MatMul" and node.domain == ""))


def _kind(node: ir.Node, index: int) -> str:
    if is_dense(node, index):
        return "dense"
    embeds = node.op_type in ("Gather", "EmbedLayerNormalization") or functions.is_fused(node, *functions.EMBEDDINGS)
    return "embedding" if embeds else "other"


def turns(node: ir.Node) -> bool:
    """Whether a dense layer's operator transposes its weights."""
    return node.attributes.get_int("transB", 0) != 0


def _activations(data: ir.Value | None) -> str | None:
    if data is None:
        return None
    node = data.producer()
    if node is not None and node.op_type == "DequantizeLinear" and (source := node.inputs[0]) is not None:
        data = source
    return None if data.dtype is None else precision(data.dtype)


def _per(data: ir.Value | None) -> str | None:
    """What the vectors represent: in the fused form, tokens are a dimension of three-dimensional values only. A single
    position represents the sequence."""
    if data is None or data.shape is None or len(data.shape) not in (2, 3):
        return None
    return "token" if len(data.shape) == 3 and data.shape[1] != 1 else "sequence"


def _zeros(
    tensor: ir.TensorProtocol, zero: ir.Value | None, transposed: bool, *, blocks: bool
) -> tuple[float, float | None]:
    """The fractions of elements and of blocks that are 0."""
    array = tensor.numpy()
    if array.size == 0:
        return 0.0, None
    point = None if zero is None or zero.const_value is None else zero.const_value.numpy()
    if point is not None and point.size > 1:
        # One for each output: along the last axis, unless its size fits the first only.
        axis = 0 if transposed or array.shape[-1] != point.size else array.ndim - 1
        point = point.reshape([-1 if at == axis else 1 for at in range(array.ndim)])
    kept = array != (0 if point is None else point)
    sparsity = 1 - int(np.count_nonzero(kept)) / kept.size
    if not blocks or kept.ndim != 2:
        return sparsity, None
    by_input = kept.T if transposed else kept
    if by_input.shape[0] % BLOCK:
        return sparsity, None
    nonzero = by_input.reshape(-1, BLOCK, by_input.shape[1]).any(axis=1)
    return sparsity, 1 - int(np.count_nonzero(nonzero)) / nonzero.size


def _pattern(sparsity: float, zero_blocks: float | None) -> str:
    if sparsity < _SPARSE:
        return "dense"
    by_chance = sparsity**BLOCK
    if zero_blocks is not None and zero_blocks >= by_chance + _IN_BLOCKS * (sparsity - by_chance):
        return "block4"
    return "unstructured"
