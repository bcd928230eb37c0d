"""The encoders of T5 and mT5: normalization before the layers, without means and biases, and scores without a scale."""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir

from isorun.errors import InvalidModel
from isorun.graph.builders import activations
from isorun.graph.builders.bert import BertBuilder
from isorun.graph.ops import functions


class T5Builder(BertBuilder):
    """Reads ``d_kv``, ``feed_forward_proj`` and ``relative_attention_max_distance`` from ``config.json``."""

    def _embed(self, inputs: Mapping[str, ir.Value]) -> ir.Value:
        config = self._config
        words = self.weight(f"{config.words}.weight", config.vocab_size, config.hidden_size)
        return self.fused(functions.EMBEDDINGS[1], "embeddings", [inputs["input_ids"], None, None, words])

    def _layer(self, name: str, prefix: str, hidden: ir.Value, mask: ir.Value, bias: ir.Value | None) -> ir.Value:
        width, inner = self._config.hidden_size, self._inner
        unit = self._rms(f"{prefix}.layer.0.layer_norm", hidden)
        context = self._attend(f"{name}.attention", prefix, unit, mask, bias)
        product = self.dense(f"{prefix}.layer.0.SelfAttention.o", context, inner, width, f"{name}.attention_output")
        hidden = self.node("Add", f"{name}.attended", [hidden, product])
        unit = self._rms(f"{prefix}.layer.1.layer_norm", hidden)
        product = self._feed_forward(name, f"{prefix}.layer.1.DenseReluDense", unit)
        return self.node("Add", name, [hidden, product])

    def _feed_forward(self, name: str, prefix: str, hidden: ir.Value) -> ir.Value:
        width, inner = self._config.hidden_size, self._config.intermediate_size
        settings = self._config.settings
        kind = settings.get("feed_forward_proj", "relu")
        activation = "gelu_new" if kind == "gated-gelu" else kind.removeprefix("gated-")  # as transformers does
        if activation not in activations.NAMES:
            names = ", ".join(activations.NAMES)
            raise InvalidModel(f"config.json: feed_forward_proj must be one of {names}, or gated-NAME, got {kind!r}")
        is_gated = kind.startswith("gated-")
        for key, derived in {"dense_act_fn": activation, "is_gated_act": is_gated}.items():
            if settings.get(key, derived) != derived:  # transformers reads them in preference
                raise InvalidModel(f"config.json: {key} must be {derived!r} for {kind!r}, got {settings[key]!r}")
        if is_gated:
            gate, up = (
                self.dense(f"{prefix}.{part}", hidden, width, inner, f"{name}.{part}") for part in ("wi_0", "wi_1")
            )
            activated = activations.gated(self, activation, f"{name}.activation", gate, up, inner)
        else:
            widened = self.dense(f"{prefix}.wi", hidden, width, inner, f"{name}.intermediate")
            activated = activations.activated(self, activation, f"{name}.activation", widened, inner)
        return self.dense(f"{prefix}.wo", activated, inner, width, f"{name}.output")

    def _outputs(self, hidden: ir.Value, inputs: Mapping[str, ir.Value]) -> list[ir.Value]:
        return super()._outputs(self._rms("encoder.final_layer_norm", hidden), inputs)

    def _rms(self, prefix: str, value: ir.Value) -> ir.Value:
        gamma = self.weight(f"{prefix}.weight", self._config.hidden_size)
        epsilon = self._config.settings.get("layer_norm_epsilon", 1e-6)
        return self.fused(functions.RMS_NORM, f"{prefix}.normalized", [value, gamma], epsilon=epsilon)

    @property
    def _inner(self) -> int:
        """The width of queries."""
        return int(self._config.settings.get("d_kv", 64)) * self._config.num_attention_heads

    def _attention_attributes(self) -> dict[str, float]:
        return {"scale": 1.0}

    def _qkv(self, prefix: str) -> tuple[ir.Value, ir.Value | None]:
        shape, names = (self._inner, self._config.hidden_size), self._architecture.layer
        parts = {f"{prefix}.{part}.weight": shape for part in (names.query, names.key, names.value)}
        return self.joined(f"{prefix}.qkv.weight", parts), None
