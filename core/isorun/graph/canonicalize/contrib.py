"""Decomposition of ONNX Runtime's fused operators into standard ones, which are then fused like any exporter's.

ONNX Runtime's optimizers, and tools built on them, write operators of the domain ``com.microsoft``. Each is replaced by
an exact equivalent: ``contrib.onnxtxt`` has the formulas, this file chooses among them. A mask given as a length per
row stays one, whatever mask the length was counted from.

Operators with a state, causal attention or 8-bit arithmetic are kept and reported.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path

import onnx_ir as ir

from isorun.errors import UnsupportedModel
from isorun.graph.analysis.evaluate import CannotEvaluate, is_constant, sizes
from isorun.graph.canonicalize import contrib_decoders
from isorun.graph.canonicalize.contrib_node import FORMULAS, Node, Values, tokens_of
from isorun.graph.matching import subgraph
from isorun.graph.matching.probes import Probes
from isorun.graph.matching.report import CannotFuse, FusionReport
from isorun.graph.ops import compose, opset
from isorun.graph.ops.inline import InlinePass

DOMAIN = "com.microsoft"
_OPSET = 17  # LayerNormalization's first
_MASK_FILTER = -10000.0  # the attentions' default of mask_filter_value
_EPSILON = 1e-12  # the normalizations' default
_QUICK_ALPHA = 1.702  # QuickGelu's default of alpha
_ACTIVATIONS = frozenset(("Relu", "Sigmoid", "Softsign", "Tanh"))  # FusedGemm's activations without parameters
_UNDER_ONNX = frozenset(("SimplifiedLayerNormalization",))  # ONNX Runtime's own, in ONNX's domain
_LOOKS_LIKE = (  # the kind of fused operator that a remaining node resembles
    (re.compile("Attention|BiasSoftmax"), "SelfAttention"),
    (re.compile("EmbedLayerNorm"), "EmbedLayerNormalization"),
    (re.compile("Skip.*LayerNorm"), "SkipLayerNormalization"),
    (re.compile("Gelu"), "BiasGelu"),
)


def expand(model: ir.Model, report: FusionReport) -> None:
    """Decompose ONNX Runtime's fused operators, in place.

    Args:
        model: any model; one without such operators is unchanged.
        report: receives the operators that are kept, with the reason.
    """
    is_early = model.graph.opset_imports.get("", 0) < _OPSET  # in which ONNX Runtime writes LayerNormalization too
    if not any(_is_contrib(node) or (is_early and node.op_type == "LayerNormalization") for node in model.graph):
        return
    try:
        if model.graph.opset_imports[""] < _OPSET:
            opset.move(model.graph, _OPSET)
    except UnsupportedModel as error:
        why = str(error)
        _refuse(model, report, lambda _: why)
        return
    reasons: dict[ir.Node, str] = {}
    for decompositions in (_PLAIN, _ATTENTIONS):  # masks must be standard operators before attentions are decomposed
        for node in list(model.graph):
            if _is_contrib(node) and node.op_type in decompositions:
                try:
                    values = decompositions[node.op_type](Node(node))
                except (CannotFuse, CannotEvaluate) as why:
                    reasons[node] = str(why)
                    continue
                for old, new in zip(node.outputs, values, strict=False):
                    subgraph.replace(old, new)
                model.graph.remove(node, safe=True)
        _inline(model)
    _refuse(model, report, lambda node: reasons.get(node, f"{DOMAIN}.{node.op_type} is not supported"))
    if not any(node.domain == DOMAIN for node in model.graph):
        model.graph.opset_imports.pop(DOMAIN, None)


def _is_contrib(node: ir.Node) -> bool:
    return node.domain == DOMAIN or (node.domain == "" and node.op_type in _UNDER_ONNX)


def _refuse(model: ir.Model, report: FusionReport, reason: Callable[[ir.Node], str]) -> None:
    for node in model.graph:
        kind = next((kind for pattern, kind in _LOOKS_LIKE if pattern.search(node.op_type)), None)
        if node.domain == DOMAIN and kind is not None:
            report.refuse(kind, node.name, reason(node))


def _gelu(op: Node, formula: str = "Gelu") -> Values:
    x, bias = op.needed(0), op.input(1)
    return [op.part(formula, x if bias is None else op("Add", x, bias))]


def _quick_gelu(op: Node) -> Values:
    x, alpha = op.needed(0), op.number("alpha", _QUICK_ALPHA)
    gate = op("Sigmoid", x if alpha == 1 else op("Mul", x, op.like(alpha, x)))
    return [op("Mul", x, gate)]


def _skip_layer_normalization(op: Node) -> Values:
    op.refuse_outputs((1, 2), "the mean or the deviation")
    total, bias = op.needed(0), op.input(4)
    if bias is not None:
        total = op("Add", total, bias)
    total = op("Add", total, op.needed(1))
    return [_normalized(op, total, 2), total, total, total]


def _embed_layer_normalization(op: Node) -> Values:
    ids, types, mask, positions = op.needed(0), op.input(1), op.input(7), op.input(8)
    if mask is None and op.is_used(1):
        raise CannotFuse("another node uses the mask count of an EmbedLayerNormalization without a mask")
    total = op("Gather", op.needed(2), ids)
    if types is not None:
        total = op("Add", total, op("Gather", op.needed(4), types))
    if positions is None:
        positions = op.part("Positions", ids)
    total = op("Add", total, op("Gather", op.needed(3), positions))
    count = total if mask is None else op.part("CountOfOnes", mask)
    return [_normalized(op, total, 5), count, total]


def _normalized(op: Node, total: ir.Value, gamma: int) -> ir.Value:
    epsilon = op.number("epsilon", _EPSILON)
    inputs = [total, op.needed(gamma), op.input(gamma + 1)]
    return op("LayerNormalization", *inputs, axis=-1, epsilon=epsilon)


def _fused_matmul(op: Node) -> Values:
    if op.integer("transBatchA") or op.integer("transBatchB"):
        raise CannotFuse(f"{op.node.op_type} transposes its batch")
    factors = [op.needed(0), op.needed(1)]
    for index, name in enumerate(("transA", "transB")):
        if op.integer(name):
            rank = subgraph.rank(factors[index])
            if rank is None:
                raise CannotFuse(f"{op.node.op_type} transposes {factors[index].name!r}, whose rank is unknown")
            if rank > 1:
                factors[index] = op("Transpose", factors[index], perm=[*range(rank - 2), rank - 1, rank - 2])
    product = op("MatMul", *factors)
    alpha = op.number("alpha", 1.0)
    return [product if alpha == 1 else op("Mul", product, op.like(alpha, product))]


def _fused_gemm(op: Node) -> Values:
    attributes = op.node.attributes
    activation = attributes.get_string("activation", "")
    if activation and activation not in _ACTIVATIONS:
        raise CannotFuse(f"FusedGemm has the activation {activation}")
    kept = {name: attributes[name].value for name in ("alpha", "beta", "transA", "transB") if name in attributes}
    result = op("Gemm", *op.node.inputs, **kept)
    return [op(activation, result) if activation else result]


def _attention(op: Node) -> Values:
    op.refuse_memory((4, 6))
    if op.integer("do_rotary"):
        raise CannotFuse("Attention has rotary embeddings")
    hidden, weight, bias, mask = op.needed(0), op.needed(1), op.input(2), op.input(3)
    if not is_constant(weight):
        raise CannotFuse(f"the weight {weight.name!r} of Attention is not a constant")
    columns = sizes(weight)[-1]
    parts = [columns // 3] * 3
    if "qkv_hidden_sizes" in op.node.attributes:
        parts = list(op.node.attributes["qkv_hidden_sizes"].as_ints())
    product = op("MatMul", hidden, weight)
    if bias is not None:
        product = op("Add", product, bias)
    query, key, value = op.split(product, parts)
    return [_core(op, query, key, value, mask, op.input(5))]


def _multi_head_attention(op: Node) -> Values:
    op.refuse_memory(range(6, 10))
    query, key, value = op.needed(0), op.needed(1), op.needed(2)
    for projection in (query, key, value):
        if (rank := subgraph.rank(projection)) not in (3, None):
            raise CannotFuse(f"the input {projection.name!r} of MultiHeadAttention must have 3 dimensions, got {rank}")
    bias = op.input(3)
    if bias is not None:
        if not is_constant(bias):
            raise CannotFuse(f"the bias {bias.name!r} of MultiHeadAttention is not a constant")
        thirds = op.split(bias, [sizes(bias)[0] // 3] * 3)
        query, key, value = (
            op("Add", product, third) for product, third in zip((query, key, value), thirds, strict=True)
        )
    return [_core(op, query, key, value, op.input(4), op.input(5))]


def _core(
    op: Node, query: ir.Value, key: ir.Value, value: ir.Value, mask: ir.Value | None, bias: ir.Value | None
) -> ir.Value:
    """Softmax(scale Q K^T + bias + mask) V."""
    heads = op.integer("num_heads")
    scores = op.part("Products", query, key, num_heads=heads)
    scale = op.number("scale", 0.0)
    scaled = op("Mul", scores, op.like(scale, scores)) if scale else None
    scores = scaled or op.part("OverRoot", scores, query, num_heads=heads)
    if bias is not None:
        scores = op("Add", scores, bias)
    if mask is not None:
        scores = op("Add", scores, _mask(op, mask, query, key))
    return op.part("Context", scores, value, num_heads=heads)


def _mask(op: Node, mask: ir.Value, query: ir.Value, key: ir.Value) -> ir.Value:
    """The value that a mask adds to the scores."""
    probes = Probes(op.graph)
    rows, shape = probes.rows, _shape(op.graph, probes, mask)
    rank = len(shape)
    if rank == 1 and shape[0] == rows:
        mask = op.part("KeysBefore", mask, tokens_of(key))
    elif rank == 1 and shape[0] == 2 * rows:
        mask = op.part("KeysBetween", mask, tokens_of(key))
    elif rank not in (2, 3, 4):
        raise CannotFuse(f"the mask {mask.name!r} has the shape {shape} for {rows} rows")
    if rank < 4:
        mask = op("Unsqueeze", mask, [1] if rank == 3 else [1, 2])
    return op.part("MaskOf", mask, query, mask_filter_value=op.number("mask_filter_value", _MASK_FILTER))


def _shape(graph: ir.Graph, probes: Probes, mask: ir.Value) -> tuple[int, ...]:
    """The shape of a mask for the rows of the probe batches."""
    if mask.is_graph_input() and mask.shape is not None and len(mask.shape) == 1:
        rows, size = {value.shape[0] for value in graph.inputs if value.shape is not None}, mask.shape[0]
        if isinstance(size, int) and size % 2 == 0 and size // 2 in rows:
            return (2 * probes.rows,)
        known = isinstance(size, int) or size.value is not None
        return (probes.rows if known and size in rows else 0,)
    if mask.is_graph_input() and mask.shape is not None and len(mask.shape) > 2:
        return (probes.rows,) * len(mask.shape)  # it has no samples, and only its rank is used
    return probes.evaluator(probes.feeds(probes.lengths[0]))(mask).shape


_PLAIN: dict[str, Callable[[Node], Values]] = {
    "BiasGelu": _gelu,
    "EmbedLayerNormalization": _embed_layer_normalization,
    "FastGelu": partial(_gelu, formula="FastGelu"),
    "FusedGemm": _fused_gemm,
    "FusedMatMul": _fused_matmul,
    "Gelu": _gelu,
    "QuickGelu": _quick_gelu,
    "SkipLayerNormalization": _skip_layer_normalization,
    "TransposeMatMul": _fused_matmul,
    **contrib_decoders.PLAIN,
}
_ATTENTIONS: dict[str, Callable[[Node], Values]] = {
    "Attention": _attention,
    "MultiHeadAttention": _multi_head_attention,
    **contrib_decoders.ATTENTIONS,
}


def _inline(model: ir.Model) -> None:
    """Inline the calls of formulas."""
    text = Path(__file__).with_suffix(".onnxtxt").read_text(encoding="utf-8")
    for proto in compose.parse(text, FORMULAS).values():
        function = ir.serde.deserialize_function(proto)
        function.opset_imports[""] = model.graph.opset_imports[""]  # the operators are the same in all since 17
        model.functions[function.identifier()] = function
    InlinePass(lambda function: function.domain == FORMULAS)(model)
    for identifier in [key for key in model.functions if key[0] == FORMULAS]:
        del model.functions[identifier]  # formulas without a call
    model.graph.opset_imports.pop(FORMULAS, None)
