"""The meaning of ONNX Runtime's fused operators of decoders: grouped queries, rotations, normalizations by the root."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import onnx_ir as ir

from isorun.graph.analysis.evaluate import is_constant, sizes
from isorun.graph.canonicalize.contrib_node import Node, Values, tokens_of
from isorun.graph.matching.report import CannotFuse

_EPSILON, _SKIP_EPSILON, _HEAD_EPSILON = 1e-5, 1e-12, 1e-6  # the defaults of normalizations: alone, of sums, of heads
_EXCLUDED = -3.4028235e38  # what torch adds to the score of a key that is not attended to


def _root_normalization(op: Node) -> Values:
    if op.node.attributes.get_int("axis", -1) != -1:
        raise CannotFuse(f"{op.node.op_type} normalizes more than the last axis")
    op.refuse_outputs((1,), "the deviation")
    return [_normalized(op, op.needed(0), op.needed(1), op.number("epsilon", _EPSILON))]


def _skip_root_normalization(op: Node) -> Values:
    op.refuse_outputs((1, 2), "the mean or the deviation")
    total, bias = op("Add", op.needed(0), op.needed(1)), op.input(3)
    if bias is not None:
        total = op("Add", total, bias)
    normalized = _normalized(op, total, op.needed(2), op.number("epsilon", _SKIP_EPSILON))
    return [normalized, total, total, total]


def _normalized(op: Node, x: ir.Value, scale: ir.Value, epsilon: float) -> ir.Value:
    """x over the root of its mean square, in fp32."""
    wide = op("Cast", x, to=int(ir.DataType.FLOAT))
    mean = op.mean(op("Mul", wide, wide))
    root = op("Sqrt", op("Add", mean, op.real(epsilon)))
    return op("Mul", op("CastLike", op("Div", wide, root), x), scale)


def _rotary_embedding(op: Node) -> Values:
    x, positions, cosines, sines = (op.needed(index) for index in range(4))
    heads = op.integer("num_heads")
    unusual = [name for name in ("interleaved", "is_packed_batching", "rotary_embedding_dim") if op.integer(name)]
    if unusual or op.number("scale", 1.0) != 1 or not heads:
        raise CannotFuse(f"RotaryEmbedding with {', '.join(unusual) or 'a scale, or without num_heads,'} is not read")
    if positions.shape is None or len(positions.shape) != 2:
        raise CannotFuse("RotaryEmbedding reads an offset in place of positions")
    _refuse_partial(op, _width(x, heads), cosines)
    rows = (op("Gather", table, positions) for table in (cosines, sines))
    angles = [op("Unsqueeze", row, [1]) for row in rows]
    return [op.part("HeadsTogether", op.part("Rotated", op.part("HeadsApart", x, num_heads=heads), *angles))]


def _width(x: ir.Value, heads: int) -> int:
    """The width of each head of x (B, S, H)."""
    width = None if x.shape is None else x.shape[-1]
    if not isinstance(width, int):
        raise CannotFuse(f"the width of {x.name!r} is unknown")
    return width // heads


def _refuse_partial(op: Node, width: int, cosines: ir.Value) -> None:
    if not is_constant(cosines) or width != 2 * sizes(cosines)[-1]:
        raise CannotFuse(f"{op.node.op_type} rotates a part of each head")


def _grouped_query_attention(op: Node) -> Values:
    heads, groups = op.integer("num_heads"), op.integer("kv_num_heads")
    op.refuse_memory((3, 4, 11, 12, 13))
    _refuse_unusual(op)
    query, key, value = op.needed(0), op.input(1), op.input(2)
    counts = [heads, groups, groups]
    width = _width(query, sum(counts) if key is None else heads)
    if op.integer("do_rotary"):
        _refuse_partial(op, width, op.needed(7))
    if key is None or value is None:
        query, key, value = op.split(query, [width * count for count in counts])
    query, key, value = (
        op.part("HeadsApart", part, num_heads=count) for part, count in zip((query, key, value), counts, strict=True)
    )
    if (scale := op.input(14)) is not None:
        epsilon = op.number("qk_norm_epsilon", _HEAD_EPSILON)
        query, key = _normalized(op, query, scale, epsilon), _normalized(op, key, op.needed(15), epsilon)
    if op.integer("do_rotary"):
        angles = [op.part("FirstRows", op.needed(index), query) for index in (7, 8)]
        query, key = (op.part("Rotated", part, *angles) for part in (query, key))
    key, value = (op.part("Repeated", part, times=heads // groups) for part in (key, value))
    scores = op("MatMul", query, op("Transpose", key, perm=[0, 1, 3, 2]))
    if scale_of_scores := op.number("scale", 0.0):
        scores = op("Mul", scores, op.like(scale_of_scores, scores))
    else:
        scores = op.part("OverRootWidth", scores, query)
    if (bias := op.input(10)) is not None:
        scores = op("Add", scores, bias)
    scores = op("Add", scores, _mask(op, query))
    if op.node.attributes.get_int("causal", 1):
        scores = op("Add", scores, op.part("LaterKeys", query, mask_filter_value=_EXCLUDED))
    weighted = op("MatMul", op("Softmax", scores, axis=-1), value)
    return [op.part("HeadsTogether", weighted)]


def _mask(op: Node, query: ir.Value) -> ir.Value:
    """What is added to the scores of keys beyond the length of their row, of which the index of the last is given."""
    last, one = op("Cast", op.needed(5), to=int(ir.DataType.INT32)), op.constant("contrib", np.array(1, np.int32))
    keys = op.part("KeysBefore", op("Add", last, one), tokens_of(op.input(2) or op.needed(0)))
    keys = op("Unsqueeze", keys, [1, 2])
    return op.part("MaskOf", keys, query, mask_filter_value=_EXCLUDED)


def _refuse_unusual(op: Node) -> None:
    attributes = op.node.attributes
    names = ("rotary_interleaved", "smooth_softmax", "sliding_window_cache", "qk_output", "kv_cache_bit_width")
    unusual = [name for name in names if op.integer(name)]
    unusual += ["softcap"] if op.number("softcap", 0.0) else []
    unusual += ["local_window_size"] if attributes.get_int("local_window_size", -1) > 0 else []
    unusual += ["position_ids"] if op.input(9) is not None else []
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
