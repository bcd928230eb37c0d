"""ONNX Runtime's fused operators taken apart into standard ones, so that they can be fused like everybody's.

Its optimizers, and the tools that stand on them, write operators of the domain ``com.microsoft``. Each is replaced
by what it computes, no more and no less: ``contrib.onnxtxt`` holds the formulas, this file says which apply to a
node. A mask that is given as a length of each row stays one, whatever mask that length was counted from.

What is left is said: operators that keep a state, attend to what came before, or compute in 8 bits.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx.parser
import onnx_ir as ir

from isorun.errors import UnsupportedModel
from isorun.graph.analysis.evaluate import CannotEvaluate, is_constant, sizes
from isorun.graph.matching import subgraph
from isorun.graph.matching.probes import Probes
from isorun.graph.matching.report import CannotFuse, FusionReport
from isorun.graph.ops import opset
from isorun.graph.ops.inline import InlinePass

DOMAIN = "com.microsoft"
_PARTS = "isorun.contrib"
_OPSET = 17  # LayerNormalization's first
_MASK_FILTER = -10000.0  # what the attentions lower a masked score by where they do not say
_EPSILON = 1e-12  # the normalizations' where they do not say
_ACTIVATIONS = frozenset(("Relu", "Sigmoid", "Softsign", "Tanh"))  # FusedGemm's that have no parameters
_LOOKS_LIKE = (  # what a node that is left would have been, by its name
    (re.compile("Attention|BiasSoftmax"), "SelfAttention"),
    (re.compile("EmbedLayerNorm"), "EmbedLayerNormalization"),
    (re.compile("Skip.*LayerNorm"), "SkipLayerNormalization"),
    (re.compile("Gelu"), "BiasGelu"),
)
_KEEP_TOKENS = frozenset(
    (*("Add", "Cast", "Div", "Erf", "Gather", "LayerNormalization", "MatMul", "Mul", "Pow", "Split", "Sub", "Tanh"),)
)


def expand(model: ir.Model, report: FusionReport) -> None:
    """Take ONNX Runtime's fused operators apart, in place.

    Args:
        model: any model; one without such operators stays as it is.
        report: is told what is left, and why.
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
    for taken in (_PLAIN, _ATTENTIONS):  # what masks the attentions is plain by the time that they are looked at
        for node in list(model.graph):
            if node.domain == DOMAIN and node.op_type in taken:
                try:
                    values = taken[node.op_type](_Node(model, node))
                except (CannotFuse, CannotEvaluate) as why:
                    reasons[node] = str(why)
                    continue
                for old, new in zip(node.outputs, values, strict=False):
                    subgraph.replace(old, new)
                model.graph.remove(node, safe=True)
        _inline(model)
    _refuse(model, report, lambda node: reasons.get(node, f"{DOMAIN}.{node.op_type} is not taken apart"))
    if not any(node.domain == DOMAIN for node in model.graph):
        model.graph.opset_imports.pop(DOMAIN, None)


def _is_early_norm(node: ir.Node, model: ir.Model) -> bool:
    """Whether a node is a ``LayerNormalization`` in an opset that has none, as ONNX Runtime writes it."""
    return node.domain == "" and node.op_type == "LayerNormalization" and model.graph.opset_imports.get("", 0) < _OPSET


def _refuse(model: ir.Model, report: FusionReport, reason: Callable[[ir.Node], str]) -> None:
    for node in model.graph:
        kind = next((kind for pattern, kind in _LOOKS_LIKE if pattern.search(node.op_type)), None)
        if node.domain == DOMAIN and kind is not None:
            report.refuse(kind, node.name, reason(node))


class _Node:
    """A node to take apart: its inputs, present or not, its attributes, and nodes to put in its place."""

    def __init__(self, model: ir.Model, node: ir.Node) -> None:
        self.model, self.node = model, node
        self._count = 0

    def input(self, index: int) -> ir.Value | None:
        return self.node.inputs[index] if index < len(self.node.inputs) else None

    def needed(self, index: int) -> ir.Value:
        value = self.input(index)
        if value is None:
            raise CannotFuse(f"{self.node.op_type} lacks its input {index}")
        return value

    def integer(self, name: str) -> int:
        return self.node.attributes.get_int(name, 0)

    def number(self, name: str, default: float) -> float:
        return self.node.attributes.get_float(name, default)

    def is_used(self, index: int) -> bool:
        outputs = self.node.outputs
        return index < len(outputs) and bool(outputs[index].uses() or outputs[index].is_graph_output())

    def refuse_memory(self, past: Iterable[int]) -> None:
        """Refuse an attention that looks at what came before, or hands something on to what comes after."""
        if self.integer("unidirectional"):
            raise CannotFuse(f"{self.node.op_type} is causal")
        if any(self.input(index) is not None for index in past):
            raise CannotFuse(f"{self.node.op_type} has a state")
        self.refuse_outputs((1, 2, 3), "the keys, values or products")

    def refuse_outputs(self, indices: Sequence[int], what: str) -> None:
        if any(self.is_used(index) for index in indices):
            raise CannotFuse(f"something uses {what} of {self.node.op_type}")

    def put(self, operator: str, inputs: Sequence[ir.Value | None], **attributes: float | list[int]) -> ir.Value:
        """A standard node before this one."""
        return self._insert("", operator, inputs, 1, attributes)[0]

    def part(self, name: str, *inputs: ir.Value | None, **attributes: float) -> ir.Value:
        """A formula of ``contrib.onnxtxt`` before this one."""
        return self._insert(_PARTS, name, inputs, 1, attributes)[0]

    def split(self, value: ir.Value, parts: Sequence[int]) -> Sequence[ir.Value]:
        """A value in parts of these sizes along its last axis."""
        return self._insert("", "Split", [value, self.constant(list(parts))], len(parts), {"axis": -1})

    def constant(self, content: object) -> ir.Value:
        array = np.array(content, np.float32 if isinstance(content, float) else np.int64)
        return subgraph.constant(self.model.graph, "isorun.contrib", ir.tensor(array))

    def like(self, number: float, value: ir.Value) -> ir.Value:
        """A number in a value's type."""
        return self.put("CastLike", [self.constant(float(number)), value])

    def _insert(
        self, domain: str, name: str, inputs: Sequence[ir.Value | None], outputs: int, attributes: Mapping[str, Any]
    ) -> Sequence[ir.Value]:
        self._count += 1
        label = f"{self.node.name or self.node.outputs[0].name}.{name}.{self._count}"
        made = ir.node(name, list(inputs), attributes, domain=domain, num_outputs=outputs, name=label)
        self.model.graph.insert_before(self.node, made)
        return made.outputs


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
        raise CannotFuse("something uses the count of a mask that EmbedLayerNormalization has not")
    total = node.put("Gather", [node.needed(2), ids])
    if types is not None:
        total = node.put("Add", [total, node.put("Gather", [node.needed(4), types])])
    places = node.part("Positions", ids) if positions is None else positions
    total = node.put("Add", [total, node.put("Gather", [node.needed(3), places])])
    count = total if mask is None else node.part("CountOfOnes", mask)
    return [_normalized(node, total, 5), count, total]


def _normalized(node: _Node, total: ir.Value, gamma: int) -> ir.Value:
    epsilon = node.number("epsilon", _EPSILON)
    inputs = [total, node.needed(gamma), node.input(gamma + 1)]
    return node.put("LayerNormalization", inputs, axis=-1, epsilon=epsilon)


def _fused_matmul(node: _Node) -> _Values:
    if node.integer("transBatchA") or node.integer("transBatchB"):
        raise CannotFuse(f"{node.node.op_type} transposes its batch")
    sides = [node.needed(0), node.needed(1)]
    for index, name in enumerate(("transA", "transB")):
        if node.integer(name):
            rank = _rank(sides[index])
            if rank is None:
                raise CannotFuse(f"{node.node.op_type} transposes {sides[index].name!r}, whose rank is not known")
            if rank > 1:
                sides[index] = node.put("Transpose", [sides[index]], perm=[*range(rank - 2), rank - 1, rank - 2])
    return [_scaled(node, node.put("MatMul", sides))]


def _scaled(node: _Node, value: ir.Value) -> ir.Value:
    alpha = node.number("alpha", 1.0)
    return value if alpha == 1 else node.put("Mul", [value, node.like(alpha, value)])


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
        raise CannotFuse("Attention turns its queries and keys (rotary embedding)")
    hidden, weight, bias, mask = node.needed(0), node.needed(1), node.input(2), node.input(3)
    if not is_constant(weight):
        raise CannotFuse(f"the weight {weight.name!r} of Attention is no constant")
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
    for each in (query, key, value):
        if (rank := _rank(each)) not in (3, None):
            raise CannotFuse(f"{each.name!r}, which MultiHeadAttention takes, has {rank} dimensions; 3 are due")
    bias = node.input(3)
    if bias is not None:
        if not is_constant(bias):
            raise CannotFuse(f"the bias {bias.name!r} of MultiHeadAttention is no constant")
        thirds = node.split(bias, [sizes(bias)[0] // 3] * 3)
        query, key, value = (
            node.put("Add", [each, third]) for each, third in zip((query, key, value), thirds, strict=True)
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
    """What a mask adds to the scores."""
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
    """The shape that a mask has for as many rows as there are kinds of mask."""
    if mask.is_graph_input() and mask.shape is not None and len(mask.shape) == 1:
        rows, size = {value.shape[0] for value in graph.inputs if value.shape is not None}, mask.shape[0]
        if isinstance(size, int) and size % 2 == 0 and size // 2 in rows:
            return (2 * probes.rows,)
        known = isinstance(size, int) or size.value is not None
        return (probes.rows if known and size in rows else 0,)
    if mask.is_graph_input() and mask.shape is not None and len(mask.shape) > 2:
        return (probes.rows,) * len(mask.shape)  # no feeds are made for it; its rank is what counts
    return probes.evaluator(probes.feeds(probes.lengths[0]))(mask).shape


def _tokens(value: ir.Value) -> ir.Value:
    """The graph's input that a value has its second dimension of, so that every layer asks the same; else itself."""
    seen: set[ir.Value] = set()
    stack = [value]
    while stack:
        each = stack.pop()
        node = each.producer()
        if node is None and not is_constant(each) and _rank(each) == 2:
            return each
        if node is None or each in seen or node.op_type not in _KEEP_TOKENS:
            continue
        seen.add(each)
        stack.extend(before for before in node.inputs if before is not None and not is_constant(before))
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
    """Put the formulas in the place of their calls."""
    for proto in onnx.parser.parse_model(_text()).functions:
        proto.opset_import[0].version = model.graph.opset_imports[""]  # they mean the same in all since 17
        function = ir.serde.deserialize_function(proto)
        model.functions[function.identifier()] = function
    InlinePass(lambda function: function.domain == _PARTS)(model)
    for identifier in [each for each in model.functions if each[0] == _PARTS]:
        del model.functions[identifier]  # those that were not called
    model.graph.opset_imports.pop(_PARTS, None)


@cache
def _text() -> str:
    return Path(__file__).with_suffix(".onnxtxt").read_text()
