"""The meaning of ONNX Runtime's fused operators of decoders: grouped queries, rotations, normalizations by the root."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import onnx_ir as ir

from isorun.graph.analysis.evaluate import is_constant, sizes
from isorun.graph.canonicalize.contrib_node import Node, Values, tokens_of
from isorun.graph.matching.report import CannotFuse

_EPSILON, _SKIP_EPSILON, _HEAD_EPSILON = 1e-5, 1e-12, 1e-6  # the defaults of normalizations: alone, of sums, of heads
_EXCLUDED = -3.4028235e38  # what torch adds to the score of a key that is not attended to


def _root_normalization(node: Node) -> Values:
    if node.node.attributes.get_int("axis", -1) != -1:
        raise CannotFuse(f"{node.node.op_type} normalizes more than the last axis")
    node.refuse_outputs((1,), "the deviation")
    return [_normalized(node, node.needed(0), node.needed(1), node.number("epsilon", _EPSILON))]


def _skip_root_normalization(node: Node) -> Values:
    node.refuse_outputs((1, 2), "the mean or the deviation")
    total, bias = node.put("Add", [node.needed(0), node.needed(1)]), node.input(3)
    if bias is not None:
        total = node.put("Add", [total, bias])
    normalized = _normalized(node, total, node.needed(2), node.number("epsilon", _SKIP_EPSILON))
    return [normalized, total, total, total]


def _normalized(node: Node, x: ir.Value, scale: ir.Value, epsilon: float) -> ir.Value:
    """x over the root of its mean square, in fp32."""
    wide = node.put("Cast", [x], to=int(ir.DataType.FLOAT))
    mean = node.mean(node.put("Mul", [wide, wide]))
    root = node.put("Sqrt", [node.put("Add", [mean, node.constant(epsilon)])])
    return node.put("Mul", [node.put("CastLike", [node.put("Div", [wide, root]), x]), scale])


def _rotary_embedding(node: Node) -> Values:
    x, positions, cosines, sines = (node.needed(index) for index in range(4))
    heads = node.integer("num_heads")
    unusual = [name for name in ("interleaved", "is_packed_batching", "rotary_embedding_dim") if node.integer(name)]
    if unusual or node.number("scale", 1.0) != 1 or not heads:
        raise CannotFuse(f"RotaryEmbedding with {', '.join(unusual) or 'a scale, or without num_heads,'} is not read")
    if positions.shape is None or len(positions.shape) != 2:
        raise CannotFuse("RotaryEmbedding reads an offset in place of positions")
    _refuse_partial(node, _width(x, heads), cosines)
    rows = (node.put("Gather", [table, positions]) for table in (cosines, sines))
    angles = [node.put("Unsqueeze", [row, node.constant([1])]) for row in rows]
    return [node.part("HeadsTogether", node.part("Rotated", node.part("HeadsApart", x, num_heads=heads), *angles))]


def _width(x: ir.Value, heads: int) -> int:
    """The width of each head of x (B, S, H)."""
    width = None if x.shape is None else x.shape[-1]
    if not isinstance(width, int):
        raise CannotFuse(f"the width of {x.name!r} is unknown")
    return width // heads


def _refuse_partial(node: Node, width: int, cosines: ir.Value) -> None:
    if not is_constant(cosines) or width != 2 * sizes(cosines)[-1]:
        raise CannotFuse(f"{node.node.op_type} rotates a part of each head")


def _grouped_query_attention(node: Node) -> Values:
    heads, groups = node.integer("num_heads"), node.integer("kv_num_heads")
    node.refuse_memory((3, 4, 11, 12, 13))
    _refuse_unusual(node)
    query, key, value = node.needed(0), node.input(1), node.input(2)
    counts = [heads, groups, groups]
    width = _width(query, sum(counts) if key is None else heads)
    if node.integer("do_rotary"):
        _refuse_partial(node, width, node.needed(7))
    if key is None or value is None:
        query, key, value = node.split(query, [width * count for count in counts])
    query, key, value = (
        node.part("HeadsApart", part, num_heads=count) for part, count in zip((query, key, value), counts, strict=True)
    )
    if (scale := node.input(14)) is not None:
        epsilon = node.number("qk_norm_epsilon", _HEAD_EPSILON)
        query, key = _normalized(node, query, scale, epsilon), _normalized(node, key, node.needed(15), epsilon)
    if node.integer("do_rotary"):
        angles = [node.part("FirstRows", node.needed(index), query) for index in (7, 8)]
        query, key = (node.part("Rotated", part, *angles) for part in (query, key))
    key, value = (node.part("Repeated", part, times=heads // groups) for part in (key, value))
    scores = node.put("MatMul", [query, node.put("Transpose", [key], perm=[0, 1, 3, 2])])
    if scale_of_scores := node.number("scale", 0.0):
        scores = node.put("Mul", [scores, node.like(scale_of_scores, scores)])
    else:
        scores = node.part("OverRootWidth", scores, query)
    if (bias := node.input(10)) is not None:
        scores = node.put("Add", [scores, bias])
    scores = node.put("Add", [scores, _mask(node, query)])
    if node.node.attributes.get_int("causal", 1):
        scores = node.put("Add", [scores, node.part("LaterKeys", query, mask_filter_value=_EXCLUDED)])
    weighted = node.put("MatMul", [node.put("Softmax", [scores], axis=-1), value])
    return [node.part("HeadsTogether", weighted)]


def _mask(node: Node, query: ir.Value) -> ir.Value:
    """What is added to the scores of keys beyond the length of their row, of which the index of the last is given."""
    lengths = node.put("Add", [node.put("Cast", [node.needed(5)], to=int(ir.DataType.INT32)), node.count(1)])
    keys = node.part("KeysBefore", lengths, tokens_of(node.input(2) or node.needed(0)))
    keys = node.put("Unsqueeze", [keys, node.constant([1, 2])])
    return node.part("MaskOf", keys, query, mask_filter_value=_EXCLUDED)


def _refuse_unusual(node: Node) -> None:
    attributes = node.node.attributes
    names = ("rotary_interleaved", "smooth_softmax", "sliding_window_cache", "qk_output", "kv_cache_bit_width")
    unusual = [name for name in names if node.integer(name)]
    unusual += ["softcap"] if node.number("softcap", 0.0) else []
    unusual += ["local_window_size"] if attributes.get_int("local_window_size", -1) > 0 else []
    unusual += ["position_ids"] if node.input(9) is not None else []
    if unusual:
        raise CannotFuse(f"GroupQueryAttention has {', '.join(unusual)}")


PLAIN: Mapping[str, Callable[[Node], Values]] = {
    "RotaryEmbedding": _rotary_embedding,
    "SimplifiedLayerNormalization": _root_normalization,
    "SkipSimplifiedLayerNormalization": _skip_root_normalization,
}
"""Operators without attention."""
ATTENTIONS: Mapping[str, Callable[[Node], Values]] = {"GroupQueryAttention": _grouped_query_attention}
"""Operators whose masks must be standard operators."""
