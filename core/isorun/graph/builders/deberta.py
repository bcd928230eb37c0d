"""DeBERTa-v2 and v3: attention by content and distance, no embeddings of padding."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx_ir as ir

from isorun.errors import InvalidModel
from isorun.graph.builders.bert import BertBuilder
from isorun.graph.builders.builder import Named
from isorun.graph.ops import functions
from isorun.graph.ops import positions as position_ops


class DebertaBuilder(BertBuilder):
    """Reads ``position_buckets``, ``max_relative_positions``, ``share_att_key``, ``pos_att_type``, ``norm_rel_ebd`` and
    ``position_biased_input`` from ``config.json``."""

    def _embed(self, inputs: Mapping[str, ir.Value]) -> ir.Value:
        config, prefix = self._config, "embeddings"
        width = config.hidden_size
        self._check_settings()
        ids, mask, types = (inputs.get(name) for name in ("input_ids", "attention_mask", "token_type_ids"))
        assert ids is not None
        assert mask is not None
        values: dict[str, ir.Value | None] = {"input_ids": ids, "token_type_ids": types}
        values["word"] = self.weight(f"{prefix}.word_embeddings.weight", config.vocab_size, width)
        values["gamma"], values["beta"] = self._norm(f"{prefix}.LayerNorm", width)
        if types is not None:
            values["token_type"] = self.weight(f"{prefix}.token_type_embeddings.weight", config.type_vocab_size, width)
        self._positions = position_ops.in_order(Named(self, f"{prefix}.positions"), ids)
        if self._architecture.has_positions(config.settings):
            values["position_ids"] = self._positions
            table = f"{prefix}.position_embeddings.weight"
            values["position"] = self.weight(table, config.max_position_embeddings, width)
        ordered = functions.ordered(functions.EMBEDDING, values)
        embedded = self.fused(functions.EMBEDDING, prefix, ordered, epsilon=config.layer_norm_eps)
        column = self.node("Unsqueeze", f"{prefix}.mask", [mask, self.constant(f"{prefix}.last", np.array([2]))])
        factor = self.node("Cast", f"{prefix}.factor", [column], to=int(ir.DataType.FLOAT))
        return self.node("Mul", f"{prefix}.masked", [embedded, factor])

    def _check_settings(self) -> None:
        settings = self._config.settings
        kinds = settings.get("pos_att_type") or []
        kinds = kinds.split("|") if isinstance(kinds, str) else kinds
        if not settings.get("relative_attention") or sorted(kinds) != ["c2p", "p2c"]:
            raise InvalidModel(
                "config.json: relative_attention must be true with a pos_att_type of c2p and p2c, got "
                f"{settings.get('relative_attention')!r} and {kinds!r}"
            )
        count, farthest = self._spans()
        if count and not 1 <= count // 2 < farthest - 1:  # the logarithm of their widths would be 0 or negative
            raise InvalidModel(
                "config.json: position_buckets must be at least 2, and max_relative_positions above half of it plus 1, "
                f"got {count} and {farthest}"
            )
        usual = (None, self._config.hidden_size)
        if settings.get("conv_kernel_size", 0) or settings.get("embedding_size") not in usual:
            raise InvalidModel(
                "config.json: conv_kernel_size, or an embedding_size other than hidden_size, is not supported"
            )

    def _attend(
        self, name: str, prefix: str, hidden: ir.Value, mask: ir.Value, bias: ir.Value | None, **features: ir.Value
    ) -> ir.Value:
        buckets = self._buckets()
        shared = self._config.settings.get("share_att_key", False)
        features |= {
            "positions": self._positions,
            "position_keys": self._table(f"{prefix}.attention.self.{'key_proj' if shared else 'pos_key_proj'}"),
            "position_queries": self._table(f"{prefix}.attention.self.{'query_proj' if shared else 'pos_query_proj'}"),
            "buckets": self.constant("buckets", buckets),
        }
        return super()._attend(name, prefix, hidden, mask, bias, **features)

    def _attention_attributes(self) -> dict[str, float]:
        size = self._config.hidden_size // self._config.num_attention_heads
        return {"paired": 1, "scale": (3 * size) ** -0.5}

    def _spans(self) -> tuple[int, int]:
        """The number of buckets for either side, 0 for one a distance, and the farthest distance."""
        settings = self._config.settings
        farthest = settings.get("max_relative_positions", -1)
        farthest = self._config.max_position_embeddings if farthest < 1 else farthest
        return max(settings.get("position_buckets", -1), 0), farthest

    def _buckets(self) -> np.ndarray:
        return position_ops.log_buckets(*self._spans())

    def _table(self, projection: str) -> ir.Value:
        """A projection of the embeddings of every bucket, (P, H)."""
        config, (count, farthest) = self._config, self._spans()
        width, rows = config.hidden_size, 2 * (count or farthest)
        table, norm = "encoder.rel_embeddings.weight", "encoder.LayerNorm"
        normalized = "layer_norm" in config.settings.get("norm_rel_ebd", "none")
        shapes = {table: (rows, width), f"{projection}.weight": (width, width), f"{projection}.bias": (width,)}
        shapes |= {f"{norm}.weight": (width,), f"{norm}.bias": (width,)} if normalized else {}
        for tensor, shape in shapes.items():
            self.weights.check(tensor, shape)

        def by_bucket() -> np.ndarray:
            read = {tensor: self.weights.read(tensor, shape) for tensor, shape in shapes.items()}
            embedded = read[table]
            if normalized:
                centered = embedded - embedded.mean(-1, keepdims=True)
                deviation = np.sqrt(np.square(centered).mean(-1, keepdims=True) + np.float32(config.layer_norm_eps))
                embedded = centered / deviation * read[f"{norm}.weight"] + read[f"{norm}.bias"]
            return np.asarray(embedded @ read[f"{projection}.weight"].T + read[f"{projection}.bias"], np.float32)

        return self.lazy(f"{projection}.by_bucket", by_bucket, (rows, width))
