"""Decomposition of ONNX Runtime's fused operators into standard ones, which are then fused like any exporter's.

ONNX Runtime's optimizers, and tools built on them, write operators of the domain ``com.microsoft``. Each is replaced by
an exact equivalent: ``contrib.onnxtxt`` has the formulas, this file chooses among them. A mask given as a length per
row stays one, whatever mask the length was counted from.

Operators with a state, causal attention or 8-bit arithmetic are kept and reported.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from isorun.errors import UnsupportedModel
from isorun.graph.analysis.evaluate import CannotEvaluate, is_constant, sizes
from isorun.graph.matching import subgraph
from isorun.graph.matching.probes import Probes
from isorun.graph.matching.report import CannotFuse, FusionReport
from isorun.graph.ops import compose, opset
from isorun.graph.ops.inline import InlinePass

DOMAIN = "com.microsoft"
_FORMULAS_DOMAIN = "isorun.contrib"
_OPSET = 17  # LayerNormalization's first
_MASK_FILTER = -10000.0  # the attentions' default of mask_filter_value
_EPSILON = 1e-12  # the normalizations' default
_ACTIVATIONS = frozenset(("Relu", "Sigmoid", "Softsign", "Tanh"))  # FusedGemm's activations without parameters
_LOOKS_LIKE = (  # the kind of fused operator that a remaining node resembles
    (re.compile("Attention|BiasSoftmax"), "SelfAttention"),
    (re.compile("EmbedLayerNorm"), "EmbedLayerNormalization"),
    (re.compile("Skip.*LayerNorm"), "SkipLayerNormalization"),
    (re.compile("Gelu"), "BiasGelu"),
)
_KEEP_TOKENS = frozenset(
    ("Add", "Cast", "Div", "Erf", "Gather", "LayerNormalization", "MatMul", "Mul", "Pow", "Split", "Sub", "Tanh")
)


def expand(model: ir.Model, report: FusionReport) -> None:
    """Decompose ONNX Runtime's fused operators, in place.

    Args:
        model: any model; one without such operators is unchanged.
        report: receives the operators that are kept, with the reason.
    """
    if not any(node.domain == DOMAIN or _is_early_norm(node, model) for node in model.graph):
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
            if node.domain == DOMAIN and node.op_type in decompositions:
                try:
                    values = decompositions[node.op_type](_Node(model, node))
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


def _is_early_norm(node: ir.Node, model: ir.Model) -> bool:
    """Whether a node is a ``LayerNormalization`` in an opset without it, as ONNX Runtime writes it."""
    return node.domain == "" and node.op_type == "LayerNormalization" and model.graph.opset_imports.get("", 0) < _OPSET


def _refuse(model: ir.Model, report: FusionReport, reason: Callable[[ir.Node], str]) -> None:
    for node in model.graph:
        kind = next((kind for pattern, kind in _LOOKS_LIKE if pattern.search(node.op_type)), None)
        if node.domain == DOMAIN and kind is not None:
            report.refuse(kind, node.name, reason(node))


class _Node:
    """A node to decompose: its optional inputs, its attributes, and the insertion of its replacement."""

    def __init__(self, model: ir.Model, node: ir.Node) -> None:
        self.model, self.node = model, node
        self._count = 0

    def input(self, index: int) -> ir.Value | None:
        return self.node.inputs[index] if index < len(self.node.inputs) else None

    def needed(self, index: int) -> ir.Value:
        value = self.input(index)
        if value is None:
            raise CannotFuse(f"{self.node.op_type} has no input {index}")
        return value

    def integer(self, name: str) -> int:
        return self.node.attributes.get_int(name, 0)

    def number(self, name: str, default: float) -> float:
        return self.node.attributes.get_float(name, default)

    def is_used(self, index: int) -> bool:
        outputs = self.node.outputs
        return index < len(outputs) and bool(outputs[index].uses() or outputs[index].is_graph_output())

    def refuse_memory(self, past: Iterable[int]) -> None:
        """Reject a causal attention, and one that reads or writes a state."""
        if self.integer("unidirectional"):
            raise CannotFuse(f"{self.node.op_type} is causal")
        if any(self.input(index) is not None for index in past):
            raise CannotFuse(f"{self.node.op_type} has a state")
        self.refuse_outputs((1, 2, 3), "the keys, values or products")

    def refuse_outputs(self, indices: Sequence[int], what: str) -> None:
        if any(self.is_used(index) for index in indices):
            raise CannotFuse(f"another node uses {what} of {self.node.op_type}")

    def put(self, operator: str, inputs: Sequence[ir.Value | None], **attributes: float | list[int]) -> ir.Value:
        """Insert a standard operator before this node."""
        return self._insert("", operator, inputs, 1, attributes)[0]

    def part(self, name: str, *inputs: ir.Value | None, **attributes: float) -> ir.Value:
        """Insert a formula of ``contrib.onnxtxt`` before this node."""
        return self._insert(_FORMULAS_DOMAIN, name, inputs, 1, attributes)[0]

    def split(self, value: ir.Value, parts: Sequence[int]) -> Sequence[ir.Value]:
        """Split a value into parts of these sizes along its last axis."""
        return self._insert("", "Split", [value, self.constant(list(parts))], len(parts), {"axis": -1})

    def constant(self, content: object) -> ir.Value:
        array = np.array(content, np.float32 if isinstance(content, float) else np.int64)
        return subgraph.constant(self.model.graph, "isorun.contrib", ir.tensor(array))

    def like(self, number: float, value: ir.Value) -> ir.Value:
        """A number in the type of a value."""
        return self.put("CastLike", [self.constant(float(number)), value])

    def _insert(
        self, domain: str, name: str, inputs: Sequence[ir.Value | None], outputs: int, attributes: Mapping[str, Any]
    ) -> Sequence[ir.Value]:
        self._count += 1
        label = f"{self.node.name or self.node.outputs[0].name}.{name}.{self._count}"
        inserted = ir.node(name, list(inputs), attributes, domain=domain, num_outputs=outputs, name=label)
        self.model.graph.insert_before(self.node, inserted)
        return inserted.outputs


_Values = Sequence[ir.Value]


def _gelu(node: _Node) -> _Values:
    return [node.part("Gelu", node.needed(0))]


def _bias_gelu(node: _Node) -> _Values:
    return [node.part("Gelu", node.put("Add", [node.needed(0), node.needed(1)]))]


def _fast_gelu(node: _Node) -> _Values:
    x, bias = node.needed(0), node.input(1)
    return [node.part("FastGelu", x if bias is None else node.put("Add", [x, bias]))]


def _skip_layer_normalization(node: _Node) -> _Values:
    node.refuse_outputs((1, 2), "the mean or the deviation")
    total, bias = node.needed(0), node.input(4)
    if bias is not None:
        total = node.put("Add", [total, bias])
    total = node.put("Add", [total, node.needed(1)])
    return [_normalized(node, total, 2), total, total, total]


def _embed_layer_normalization(node: _Node) -> _Values:
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


def _normalized(node: _Node, total: ir.Value, gamma: int) -> ir.Value:
    epsilon = node.number("epsilon", _EPSILON)
    inputs = [total, node.needed(gamma), node.input(gamma + 1)]
    return node.put("LayerNormalization", inputs, axis=-1, epsilon=epsilon)


def _fused_matmul(node: _Node) -> _Values:
    if node.integer("transBatchA") or node.integer("transBatchB"):
        raise CannotFuse(f"{node.node.op_type} transposes its batch")
    factors = [node.needed(0), node.needed(1)]
    for index, name in enumerate(("transA", "transB")):
        if node.integer(name):
            rank = _rank(factors[index])
            if rank is None:
                raise CannotFuse(f"{node.node.op_type} transposes {factors[index].name!r}, whose rank is unknown")
            if rank > 1:
                factors[index] = node.put("Transpose", [factors[index]], perm=[*range(rank - 2), rank - 1, rank - 2])
    product = node.put("MatMul", factors)
    alpha = node.number("alpha", 1.0)
    return [product if alpha == 1 else node.put("Mul", [product, node.like(alpha, product)])]


def _fused_gemm(node: _Node) -> _Values:
    attributes = node.node.attributes
    activation = attributes.get_string("activation", "")
    if activation and activation not in _ACTIVATIONS:
        raise CannotFuse(f"FusedGemm has the activation {activation}")
    kept = {name: attributes[name].value for name in ("alpha", "beta", "transA", "transB") if name in attributes}
    result = node.put("Gemm", node.node.inputs, **kept)
    return [node.put(activation, [result]) if activation else result]


def _attention(node: _Node) -> _Values:
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


def _multi_head_attention(node: _Node) -> _Values:
    node.refuse_memory(range(6, 10))
    query, key, value = node.needed(0), node.needed(1), node.needed(2)
    for projection in (query, key, value):
        if (rank := _rank(projection)) not in (3, None):
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
    node: _Node, query: ir.Value, key: ir.Value, value: ir.Value, mask: ir.Value | None, bias: ir.Value | None
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


def _mask(node: _Node, mask: ir.Value, query: ir.Value, key: ir.Value) -> ir.Value:
    """The value that a mask adds to the scores."""
    probes = Probes(node.model.graph)
    rows, shape = probes.rows, _shape(node.model.graph, probes, mask)
    rank = len(shape)
    if rank == 1 and shape[0] == rows:
        mask = node.part("KeysBefore", mask, _tokens(key))
    elif rank == 1 and shape[0] == 2 * rows:
        mask = node.part("KeysBetween", mask, _tokens(key))
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


def _tokens(value: ir.Value) -> ir.Value:
    """The graph input with the value's sequence dimension, so that all layers share its shape; else the value."""
    seen: set[ir.Value] = set()
    stack = [value]
    while stack:
        current = stack.pop()
        node = current.producer()
        if node is None and not is_constant(current) and _rank(current) == 2:
            return current
        if node is None or current in seen or node.op_type not in _KEEP_TOKENS:
            continue
        seen.add(current)
        stack.extend(source for source in node.inputs if source is not None and not is_constant(source))
    return value


def _rank(value: ir.Value) -> int | None:
    if is_constant(value):
        return len(sizes(value))
    return None if value.shape is None else len(value.shape)


_PLAIN: dict[str, Callable[[_Node], _Values]] = {
    "BiasGelu": _bias_gelu,
    "EmbedLayerNormalization": _embed_layer_normalization,
    "FastGelu": _fast_gelu,
    "FusedGemm": _fused_gemm,
    "FusedMatMul": _fused_matmul,
    "Gelu": _gelu,
    "SkipLayerNormalization": _skip_layer_normalization,
    "TransposeMatMul": _fused_matmul,
}
_ATTENTIONS: dict[str, Callable[[_Node], _Values]] = {
    "Attention": _attention,
    "MultiHeadAttention": _multi_head_attention,
}


def _inline(model: ir.Model) -> None:
    """Inline the calls of formulas."""
    for proto in compose.parse(_text(), _FORMULAS_DOMAIN).values():
        function = ir.serde.deserialize_function(proto)
        function.opset_imports[""] = model.graph.opset_imports[
            ""
        ]  # their operators are the same in all opsets since 17
        model.functions[function.identifier()] = function
    InlinePass(lambda function: function.domain == _FORMULAS_DOMAIN)(model)
    for identifier in [key for key in model.functions if key[0] == _FORMULAS_DOMAIN]:
        del model.functions[identifier]  # formulas without a call
    model.graph.opset_imports.pop(_FORMULAS_DOMAIN, None)


@cache
def _text() -> str:
    return Path(__file__).with_suffix(".onnxtxt").read_text(encoding="utf-8")
