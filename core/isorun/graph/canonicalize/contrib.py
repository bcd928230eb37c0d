"""Decomposition of ONNX Runtime's fused operators into standard ones, which are then fused like any exporter's.

ONNX Runtime's optimizers, and tools built on them, write operators of the domain ``com.microsoft``. Each is replaced by
an exact equivalent: ``contrib.onnxtxt`` has the formulas, this file chooses among them. A mask given as a length per
row stays one, whatever mask the length was counted from.

Operators with a state, causal attention or 8-bit arithmetic are kept and reported.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from pathlib import Path

import onnx_ir as ir

from isorun.errors import UnsupportedModel
from isorun.graph.analysis.evaluate import CannotEvaluate, is_constant, sizes
from isorun.graph.canonicalize import contrib_decoders
from isorun.graph.canonicalize.contrib_node import FORMULAS, Node, Values, rank_of, tokens_of
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
    if not any(_is_contrib(node) or _is_early_norm(node, model) for node in model.graph):
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
                    values = decompositions[node.op_type](Node(model, node))
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


def _is_early_norm(node: ir.Node, model: ir.Model) -> bool:
    """Whether a node is a ``LayerNormalization`` in an opset without it, as ONNX Runtime writes it."""
    return node.domain == "" and node.op_type == "LayerNormalization" and model.graph.opset_imports.get("", 0) < _OPSET


def _refuse(model: ir.Model, report: FusionReport, reason: Callable[[ir.Node], str]) -> None:
    for node in model.graph:
        kind = next((kind for pattern, kind in _LOOKS_LIKE if pattern.search(node.op_type)), None)
        if node.domain == DOMAIN and kind is not None:
            report.refuse(kind, node.name, reason(node))


def _gelu(node: Node) -> Values:
    return [node.part("Gelu", node.needed(0))]


def _bias_gelu(node: Node) -> Values:
    return [node.part("Gelu", node.put("Add", [node.needed(0), node.needed(1)]))]


def _fast_gelu(node: Node) -> Values:
    x, bias = node.needed(0), node.input(1)
    return [node.part("FastGelu", x if bias is None else node.put("Add", [x, bias]))]


def _quick_gelu(node: Node) -> Values:
    x, alpha = node.needed(0), node.number("alpha", _QUICK_ALPHA)
    gate = node.put("Sigmoid", [x if alpha == 1 else node.put("Mul", [x, node.like(alpha, x)])])
    return [node.put("Mul", [x, gate])]


def _skip_layer_normalization(node: Node) -> Values:
    node.refuse_outputs((1, 2), "the mean or the deviation")
    total, bias = node.needed(0), node.input(4)
    if bias is not None:
        total = node.put("Add", [total, bias])
    total = node.put("Add", [total, node.needed(1)])
    return [_normalized(node, total, 2), total, total, total]


def _embed_layer_normalization(node: Node) -> Values:
    ids, types, mask, positions = node.needed(0), node.input(1), node.input(7), node.input(8)
    if mask is None and node.is_used(1):
        raise CannotFuse("another node uses the mask count of an EmbedLayerNormalization without a mask")
    total = node.put("Gather", [node.needed(2), ids])
    if types is not None:
        total = node.put("Add", [total, node.put("Gather", [node.needed(4), types])])
    if positions is None:
        positions = node.part("Positions", ids)
    total = node.put("Add", [total, node.put("Gather", [node.needed(3), positions])])
    count = total if mask is None else node.part("CountOfOnes", mask)
    return [_normalized(node, total, 5), count, total]


def _normalized(node: Node, total: ir.Value, gamma: int) -> ir.Value:
    epsilon = node.number("epsilon", _EPSILON)
    inputs = [total, node.needed(gamma), node.input(gamma + 1)]
    return node.put("LayerNormalization", inputs, axis=-1, epsilon=epsilon)


def _fused_matmul(node: Node) -> Values:
    if node.integer("transBatchA") or node.integer("transBatchB"):
        raise CannotFuse(f"{node.node.op_type} transposes its batch")
    factors = [node.needed(0), node.needed(1)]
    for index, name in enumerate(("transA", "transB")):
        if node.integer(name):
            rank = rank_of(factors[index])
            if rank is None:
                raise CannotFuse(f"{node.node.op_type} transposes {factors[index].name!r}, whose rank is unknown")
            if rank > 1:
                factors[index] = node.put("Transpose", [factors[index]], perm=[*range(rank - 2), rank - 1, rank - 2])
    product = node.put("MatMul", factors)
    alpha = node.number("alpha", 1.0)
    return [product if alpha == 1 else node.put("Mul", [product, node.like(alpha, product)])]


def _fused_gemm(node: Node) -> Values:
    attributes = node.node.attributes
    activation = attributes.get_string("activation", "")
    if activation and activation not in _ACTIVATIONS:
        raise CannotFuse(f"FusedGemm has the activation {activation}")
    kept = {name: attributes[name].value for name in ("alpha", "beta", "transA", "transB") if name in attributes}
    result = node.put("Gemm", node.node.inputs, **kept)
    return [node.put(activation, [result]) if activation else result]


def _attention(node: Node) -> Values:
    node.refuse_memory((4, 6))
    if node.integer("do_rotary"):
        raise CannotFuse("Attention has rotary embeddings")
    hidden, weight, bias, mask = node.needed(0), node.needed(1), node.input(2), node.input(3)
    if not is_constant(weight):
        raise CannotFuse(f"the weight {weight.name!r} of Attention is not a constant")
    columns = sizes(weight)[-1]
    parts = [columns // 3] * 3
    if "qkv_hidden_sizes" in node.node.attributes:
        parts = list(node.node.attributes["qkv_hidden_sizes"].as_ints())
    product = node.put("MatMul", [hidden, weight])
    if bias is not None:
        product = node.put("Add", [product, bias])
    query, key, value = node.split(product, parts)
    return [_core(node, query, key, value, mask, node.input(5))]


def _multi_head_attention(node: Node) -> Values:
    node.refuse_memory(range(6, 10))
    query, key, value = node.needed(0), node.needed(1), node.needed(2)
    for projection in (query, key, value):
        if (rank := rank_of(projection)) not in (3, None):
            raise CannotFuse(f"the input {projection.name!r} of MultiHeadAttention must have 3 dimensions, got {rank}")
    bias = node.input(3)
    if bias is not None:
        if not is_constant(bias):
            raise CannotFuse(f"the bias {bias.name!r} of MultiHeadAttention is not a constant")
        thirds = node.split(bias, [sizes(bias)[0] // 3] * 3)
        query, key, value = (
            node.put("Add", [product, third]) for product, third in zip((query, key, value), thirds, strict=True)
        )
    return [_core(node, query, key, value, node.input(4), node.input(5))]


def _core(
    node: Node, query: ir.Value, key: ir.Value, value: ir.Value, mask: ir.Value | None, bias: ir.Value | None
) -> ir.Value:
    """Softmax(scale Q K^T + bias + mask) V."""
    heads = node.integer("num_heads")
    scores = node.part("Products", query, key, num_heads=heads)
    scale = node.number("scale", 0.0)
    if scale:
        scores = node.put("Mul", [scores, node.like(scale, scores)])
    else:
        scores = node.part("OverRoot", scores, query, num_heads=heads)
    if bias is not None:
        scores = node.put("Add", [scores, bias])
    if mask is not None:
        scores = node.put("Add", [scores, _mask(node, mask, query, key)])
    return node.part("Context", scores, value, num_heads=heads)


def _mask(node: Node, mask: ir.Value, query: ir.Value, key: ir.Value) -> ir.Value:
    """The value that a mask adds to the scores."""
    probes = Probes(node.model.graph)
    rows, shape = probes.rows, _shape(node.model.graph, probes, mask)
    rank = len(shape)
    if rank == 1 and shape[0] == rows:
        mask = node.part("KeysBefore", mask, tokens_of(key))
    elif rank == 1 and shape[0] == 2 * rows:
        mask = node.part("KeysBetween", mask, tokens_of(key))
    elif rank not in (2, 3, 4):
        raise CannotFuse(f"the mask {mask.name!r} has the shape {shape} for {rows} rows")
    if rank < 4:
        mask = node.put("Unsqueeze", [mask, node.constant([1] if rank == 3 else [1, 2])])
    return node.part("MaskOf", mask, query, mask_filter_value=node.number("mask_filter_value", _MASK_FILTER))


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
    "BiasGelu": _bias_gelu,
    "EmbedLayerNormalization": _embed_layer_normalization,
    "FastGelu": _fast_gelu,
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
    for proto in compose.parse(_text(), FORMULAS).values():
        function = ir.serde.deserialize_function(proto)
        function.opset_imports[""] = model.graph.opset_imports[
            ""
        ]  # their operators are the same in all opsets since 17
        model.functions[function.identifier()] = function
    InlinePass(lambda function: function.domain == FORMULAS)(model)
    for identifier in [key for key in model.functions if key[0] == FORMULAS]:
        del model.functions[identifier]  # formulas without a call
    model.graph.opset_imports.pop(FORMULAS, None)


@cache
def _text() -> str:
    return Path(__file__).with_suffix(".onnxtxt").read_text(encoding="utf-8")
