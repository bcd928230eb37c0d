"""What the attention of an encoder knows of the distance of two tokens."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import onnx_ir as ir

from isorun.errors import InvalidModel
from isorun.graph.builders.builder import Builder
from isorun.graph.builders.encoder_config import EncoderConfig
from isorun.graph.ops import positions as position_ops

Features = tuple[Mapping[str, ir.Value], Mapping[str, float]]
"""Inputs of the operator by name, and its attributes."""
OfLayer = Callable[[int, str], Features]
"""The features of a layer, by its number and the prefix of its tensors."""


def _table(builder: Builder, config: EncoderConfig, ids: ir.Value) -> OfLayer:
    """A bias from a table with a row for each bucket of distances (T5, MPNet)."""
    farthest = config.settings.get("relative_attention_max_distance", position_ops.FARTHEST)
    buckets, heads = config.relative_attention_num_buckets, config.num_attention_heads
    name, shape = f"{config.architecture.relative_bias}.weight", (buckets, heads)
    count = config.architecture.buckets or buckets
    if farthest <= count // 4:  # the logarithm of their widths would be 0 or negative
        raise InvalidModel(
            f"config.json: relative_attention_max_distance must be above {count // 4}, a quarter of "
            f"relative_attention_num_buckets, got {farthest}"
        )
    rows = position_ops.buckets(count, farthest)
    by_distance = (len(rows), heads)
    table = builder.computed(f"{name}.by_distance", {name: shape}, lambda biases: biases[rows], by_distance)
    bias = position_ops.relative_bias(builder.under("relative_bias"), ids, table, len(rows) // 2)
    return lambda _index, _prefix: ({"bias": bias}, {})


def _alibi(builder: Builder, config: EncoderConfig, ids: ir.Value) -> OfLayer:
    """A bias in proportion to the distance (JinaBERT v2)."""
    op, slopes = builder.under("alibi"), -position_ops.alibi_slopes(config.num_attention_heads)
    bias = position_ops.linear_bias(op, ids, op.constant("slopes", slopes.reshape(1, -1, 1, 1)))
    return lambda _index, _prefix: ({"bias": bias}, {})


def _rotary(builder: Builder, config: EncoderConfig, ids: ir.Value) -> OfLayer:
    """Rotations of queries and keys, in some layers with a window (ModernBERT and after)."""
    positions = builder.positions(ids)
    size, stretch = config.head_width, config.stretch
    exponents = np.arange(0, size, 2, dtype=np.float32) / np.float32(size)
    turns: dict[float, tuple[ir.Value, ir.Value]] = {}

    def of_layer(index: int, _prefix: str) -> Features:
        theta, window = config.rotations[index]
        if theta not in turns:
            rates = (1 / (np.float64(theta * stretch) ** exponents * stretch ** (2 / size))).astype(np.float32)
            op = builder.under(f"rotation.{len(turns)}")
            places = position_ops.row(op, ids)
            turns[theta] = position_ops.rotation(op, places, op.constant("rates", rates), ir.DataType.FLOAT)
        cos, sin = turns[theta]
        return {"positions": positions, "cos": cos, "sin": sin}, {} if window is None else {"window": window}

    return of_layer


def _disentangled(builder: Builder, config: EncoderConfig, ids: ir.Value) -> OfLayer:
    """Scores of contents with distances, both ways (DeBERTa-v2 and v3)."""
    settings, width = config.settings, config.hidden_size
    kinds = settings.get("pos_att_type") or []
    kinds = kinds.split("|") if isinstance(kinds, str) else kinds
    if not settings.get("relative_attention") or sorted(kinds) != ["c2p", "p2c"]:
        raise InvalidModel(
            "config.json: relative_attention must be true with a pos_att_type of c2p and p2c, got "
            f"{settings.get('relative_attention')!r} and {kinds!r}"
        )
    farthest = settings.get("max_relative_positions", -1)
    farthest = config.max_position_embeddings if farthest < 1 else farthest
    count = max(settings.get("position_buckets", -1), 0)  # for either side; 0: each distance has its own
    if count and not 1 <= count // 2 < farthest - 1:  # the logarithm of their widths would be 0 or negative
        raise InvalidModel(
            "config.json: position_buckets must be at least 2, and max_relative_positions above half of it plus 1, "
            f"got {count} and {farthest}"
        )
    if settings.get("conv_kernel_size", 0) or settings.get("embedding_size") not in (None, width):
        raise InvalidModel(
            "config.json: conv_kernel_size, or an embedding_size other than hidden_size, is not supported"
        )
    positions = builder.positions(ids)
    rows, names = 2 * (count or farthest), ("key_proj", "query_proj")
    labels = names if settings.get("share_att_key", False) else tuple(f"pos_{name}" for name in names)

    def of_layer(_index: int, prefix: str) -> Features:
        key, query = (_bucket_rows(builder, config, f"{prefix}.attention.self.{label}", rows) for label in labels)
        buckets = builder.constant("buckets", position_ops.log_buckets(count, farthest))
        tables = {"position_keys": key, "position_queries": query, "buckets": buckets}
        return {"positions": positions, **tables}, {"paired": 1, "scale": (3 * config.head_width) ** -0.5}

    return of_layer


def _bucket_rows(builder: Builder, config: EncoderConfig, projection: str, rows: int) -> ir.Value:
    """A projection of the embeddings of every bucket, (P, H)."""
    width = config.hidden_size
    table, norm = "encoder.rel_embeddings.weight", "encoder.LayerNorm"
    normalized = "layer_norm" in config.settings.get("norm_rel_ebd", "none")
    shapes = {table: (rows, width), f"{projection}.weight": (width, width), f"{projection}.bias": (width,)}
    shapes |= {f"{norm}.weight": (width,), f"{norm}.bias": (width,)} if normalized else {}

    def by_bucket(embedded: np.ndarray, weight: np.ndarray, bias: np.ndarray, *norm: np.ndarray) -> np.ndarray:
        if norm:
            centered = embedded - embedded.mean(-1, keepdims=True)
            deviation = np.sqrt(np.square(centered).mean(-1, keepdims=True) + np.float32(config.layer_norm_eps))
            embedded = centered / deviation * norm[0] + norm[1]
        return np.asarray(embedded @ weight.T + bias, np.float32)

    return builder.computed(f"{projection}.by_bucket", shapes, by_bucket, (rows, width))


KINDS: Mapping[str, Callable[[Builder, EncoderConfig, ir.Value], OfLayer]] = {
    "none": lambda _builder, _config, _ids: lambda _index, _prefix: ({}, {}),
    "table": _table,
    "alibi": _alibi,
    "rotary": _rotary,
    "disentangled": _disentangled,
}
"""What makes the features of layers from the ids, by the names in :class:`Architecture`."""
