"""JinaBERT v2: a bias in proportion to the distance, a gated feed-forward layer, no positions."""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir

from isorun.errors import InvalidModel
from isorun.graph.builders import activations
from isorun.graph.builders.bert import BertBuilder
from isorun.graph.builders.builder import Named
from isorun.graph.ops import functions
from isorun.graph.ops import positions as position_ops


class JinaBuilder(BertBuilder):
    """Reads ``feed_forward_type`` from ``config.json``."""

    def _embed(self, inputs: Mapping[str, ir.Value]) -> ir.Value:
        config, prefix = self._config, "embeddings"
        kind = config.settings.get("feed_forward_type")
        if kind != "geglu" or config.hidden_act != "gelu":
            raise InvalidModel(f"config.json: feed_forward_type must be 'geglu', with hidden_act 'gelu', got {kind!r}")
        width = config.hidden_size
        values = {name: inputs[name] for name in ("input_ids", "token_type_ids")}
        values["word"] = self.weight(f"{prefix}.word_embeddings.weight", config.vocab_size, width)
        values["token_type"] = self.weight(f"{prefix}.token_type_embeddings.weight", config.type_vocab_size, width)
        values["gamma"], values["beta"] = self._norm(f"{prefix}.LayerNorm", width)
        return self.fused(
            functions.EMBEDDING, prefix, functions.ordered(functions.EMBEDDING, values), epsilon=config.layer_norm_eps
        )

    def _bias(self, ids: ir.Value) -> ir.Value:
        slopes = -position_ops.alibi_slopes(self._config.num_attention_heads)
        return position_ops.linear_bias(
            Named(self, "alibi"), ids, self.constant("alibi.slopes", slopes.reshape(1, -1, 1, 1))
        )

    def _feed_forward(self, name: str, prefix: str, hidden: ir.Value) -> ir.Value:
        width, inner = self._config.hidden_size, self._config.intermediate_size
        tensor, shape = f"{prefix}.mlp.gated_layers.weight", (2 * inner, width)
        columns = (self.slice(f"{tensor}.{half}", tensor, shape, half * inner, (half + 1) * inner) for half in (0, 1))
        gate, up = (self.node("MatMul", f"{name}.{half}", [hidden, part]) for half, part in enumerate(columns))
        activated = activations.gated(self, "gelu", f"{name}.activation", gate, up, inner)
        product = self.dense(f"{prefix}.mlp.wo", activated, inner, width, f"{name}.output")
        return self._skip(name, product, hidden, f"{prefix}.mlp.wo.bias", f"{prefix}.mlp.layernorm")
