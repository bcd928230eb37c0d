"""Construction of fused encoders with rotary positions (ModernBERT and after) from their weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from isorun.graph.builders import activations, heads
from isorun.graph.builders.builder import Builder, Named, Weights
from isorun.graph.builders.heads import Head
from isorun.graph.builders.rotary_families import RotaryFamily
from isorun.graph.ops import functions
from isorun.graph.ops import positions as position_ops

POOLER = "pooler.dense"


@dataclass(frozen=True)
class RotaryConfig:
    """The sizes of an encoder.

    Attributes:
        layer_kinds: for each layer, the base of its rotation and its window in tokens to either side.
        biases: which parts have biases: those of :attr:`RotaryFamily.biases`.
        scale: of the scores; ``None`` for 1 / sqrt(head_size).
        pooler: whether there is a pooler.
        task, head, labels: the task of a head, its layers, and the width of its logits; ``None`` if there is no head.
        padding_id: the id of padding, where a head looks for it.
        stretch: NTK scaling of the rotation: its base is multiplied by it, and its angles are divided by its power of
            2 / head_size.
    """

    family: RotaryFamily
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_attention_heads: int
    num_key_value_heads: int
    head_size: int
    layer_kinds: Sequence[tuple[float, int | None]]
    epsilon: float
    activation: str
    type_vocab_size: int = 0
    biases: frozenset[str] = frozenset()
    scale: float | None = None
    pooler: bool = False
    stretch: float = 1.0
    task: str | None = None
    head: Head | None = None
    labels: int = 2
    padding_id: int | None = None


def encoder(config: RotaryConfig, weights: Weights, name: str = "encoder") -> ir.Model:
    """Build the fused graph.

    Inputs, int64 (batch, sequence): ``input_ids``, ``attention_mask`` and, with more than one token type,
    ``token_type_ids``. Outputs, float32: ``last_hidden_state`` (batch, sequence, hidden); with a pooler,
    ``pooler_output`` (batch, hidden); with a head, those of :func:`isorun.graph.builders.heads.add`.
    """
    return _RotaryBuilder(config, weights).model(name)


class _RotaryBuilder(Builder):
    def __init__(self, config: RotaryConfig, weights: Weights) -> None:
        super().__init__(weights)
        self._config = config
        self._family = config.family
        self._turns: dict[float, tuple[ir.Value, ir.Value]] = {}

    def model(self, name: str) -> ir.Model:
        config, family = self._config, self._family
        labels = ["input_ids", "attention_mask", *(["token_type_ids"] if config.type_vocab_size > 1 else [])]
        inputs = {label: self.input(label) for label in labels}
        ids, mask = inputs["input_ids"], inputs["attention_mask"]
        hidden = self._embed(ids, inputs.get("token_type_ids"))
        self._positions = position_ops.in_order(Named(self, "positions"), ids)
        for index, (theta, window) in enumerate(config.layer_kinds):
            hidden = self._layer(index, hidden, mask, self._turn(ids, theta), window)
        if family.final_norm is not None and family.rms:
            hidden = self._norm(family.final_norm, hidden, "final_norm")
        outputs = [self.output("last_hidden_state", hidden, "sequence", config.hidden_size)]
        pooled = None
        if config.pooler:
            first = self.node("Gather", "pooler.first", [hidden, self.constant("first", np.array(0))], axis=1)
            product = self.dense(POOLER, first, config.hidden_size, config.hidden_size)
            biased = self.node("Add", "pooler.biased", [product, self.weight(f"{POOLER}.bias", config.hidden_size)])
            pooled = self.node("Tanh", "pooler.activated", [biased])
            outputs.append(self.output("pooler_output", pooled, config.hidden_size))
        if config.task is not None and config.head is not None:
            read = heads.Read(
                ids, mask, hidden, pooled, config.hidden_size, config.epsilon, config.padding_id, config.vocab_size
            )
            outputs += heads.add(self, config.task, config.head, config.labels, read)
        return self.graph(name, inputs, outputs)

    def _embed(self, ids: ir.Value, types: ir.Value | None) -> ir.Value:
        config, family = self._config, self._family
        shape = (config.vocab_size, config.hidden_size)
        name, added = f"{family.words}.weight", f"{family.types}.weight"
        self.weights.check(name, shape)
        one_type = family.types is not None and config.type_vocab_size == 1
        if one_type:
            self.weights.check(added, (1, config.hidden_size))

        def words() -> np.ndarray:
            table = self.weights.read(name, shape)
            if one_type:
                table = np.add(table, self.weights.read(added, (1, config.hidden_size)), dtype=np.float32)
            return np.asarray(table * np.float32(config.hidden_size**0.5) if family.scaled else table)

        changed = one_type or family.scaled
        values: dict[str, ir.Value | None] = {
            "input_ids": ids,
            "token_type_ids": types,
            "word": self.lazy(f"{name}.raised" if changed else name, words, shape),
        }
        if types is not None:
            values["token_type"] = self.weight(added, config.type_vocab_size, config.hidden_size)
        if family.embedding_norm is None:
            return self.fused("Embedding", "embeddings", functions.ordered("Embedding", values))
        values |= dict(zip(("gamma", "beta"), self._norm_weights(family.embedding_norm), strict=False))
        inputs = functions.ordered(functions.EMBEDDING, values)
        return self.fused(functions.EMBEDDING, "embeddings", inputs, epsilon=config.epsilon)

    def _turn(self, ids: ir.Value, theta: float) -> tuple[ir.Value, ir.Value]:
        if theta not in self._turns:
            size, stretch = self._config.head_size, self._config.stretch
            exponents = np.arange(0, size, 2, dtype=np.float32) / np.float32(size)
            rates = (1 / (np.float64(theta * stretch) ** exponents * stretch ** (2 / size))).astype(np.float32)
            nodes = Named(self, f"rotation.{len(self._turns)}")
            value = self.constant(f"rotation.{len(self._turns)}.rates", rates)
            self._turns[theta] = position_ops.rotation(nodes, position_ops.row(nodes, ids), value, ir.DataType.FLOAT)
        return self._turns[theta]

    def _layer(
        self, index: int, hidden: ir.Value, mask: ir.Value, turn: tuple[ir.Value, ir.Value], window: int | None
    ) -> ir.Value:
        config, family = self._config, self._family
        name, prefix = f"layer.{index}", family.layers.format(layer=index)
        attended_norm, mlp_norm = family.before
        read = hidden
        if attended_norm is not None and (index or family.first_norm):
            read = self._norm(f"{prefix}.{attended_norm}", hidden, f"{name}.attention_norm")
        context = self._attend(name, prefix, read, mask, turn, window)
        width = config.num_attention_heads * config.head_size
        output, down = f"{prefix}.{family.attention_output}", f"{prefix}.{family.down}"
        after_attention, after_mlp = (norm and f"{prefix}.{norm}" for norm in family.after)
        product = self.dense(output, context, width, config.hidden_size, f"{name}.attended")
        hidden = self._sum(output, "attention_output", product, hidden, after_attention, name, family.post)
        read = hidden if mlp_norm is None else self._norm(f"{prefix}.{mlp_norm}", hidden, f"{name}.mlp_norm")
        inner = self._mlp(name, prefix, read)
        product = self.dense(down, inner, config.intermediate_size, config.hidden_size, f"{name}.down")
        final = index == len(config.layer_kinds) - 1 and not family.rms and not family.post
        norm = family.final_norm if final else after_mlp
        return self._sum(down, "down", product, hidden, norm, f"{name}.mlp", final or family.post)

    def _attend(
        self,
        name: str,
        prefix: str,
        read: ir.Value,
        mask: ir.Value,
        turn: tuple[ir.Value, ir.Value],
        window: int | None,
    ) -> ir.Value:
        config, family = self._config, self._family
        size = config.head_size
        widths = [heads * size for heads in (config.num_attention_heads, *[config.num_key_value_heads] * 2)]
        parts = [f"{prefix}.{part}" for part in (family.query, family.key, family.value) if part]
        rows = dict(zip(parts, widths if len(parts) == 3 else [sum(widths)], strict=True))
        weights = {f"{part}.weight": (count, config.hidden_size) for part, count in rows.items()}
        values: dict[str, ir.Value | None] = {
            **{"hidden": read, "key_mask": mask, "cos": turn[0], "sin": turn[1], "positions": self._positions},
            "qkv_weight": self.joined(f"{prefix}.qkv.weight", weights),
        }
        attributes: dict[str, float] = {
            "num_heads": config.num_attention_heads,
            "mask_filter_value": functions.LOWEST,
        }
        if "attention" in config.biases:
            biases = {f"{part}.bias": (count,) for part, count in rows.items()}
            values["qkv_bias"] = self.joined(f"{prefix}.qkv.bias", biases)
        if family.head_norms is not None:
            for label, norm in zip(("query_gamma", "key_gamma"), family.head_norms, strict=True):
                values[label] = self._gamma(f"{prefix}.{norm}", size)
            attributes["norm_epsilon"] = config.epsilon
        if widths[0] != widths[1]:
            attributes["head_size"] = size
        if window is not None:
            attributes["window"] = window
        if family.causal:
            attributes["causal"] = 1
        if config.scale is not None and not np.isclose(config.scale, size**-0.5, rtol=1e-6):
            attributes["scale"] = config.scale
        inputs = functions.ordered(functions.ATTENTION, values)
        return self.fused(functions.ATTENTION, f"{name}.attention", inputs, **attributes)

    def _mlp(self, name: str, prefix: str, read: ir.Value) -> ir.Value:
        config, family = self._config, self._family
        width, inner = config.hidden_size, config.intermediate_size
        whole, halves = f"{prefix}.{family.gate}", []
        if family.plain:
            product = self.dense(whole, read, width, inner, f"{name}.gate")
            bias = self.weight(f"{whole}.bias", inner)
            return activations.activated(self, config.activation, f"{name}.activation", product, inner, bias)
        if family.up is not None:
            for label, part in (("gate", whole), ("up", f"{prefix}.{family.up}")):
                product = self.dense(part, read, width, inner, f"{name}.{label}")
                halves.append(self._biased(part, product, "gate", inner))
        else:
            for label, begin in (("gate", inner * family.gate_second), ("up", inner * (not family.gate_second))):
                shape, end = (2 * inner, width), begin + inner
                weight = self.slice(f"{whole}.weight.{label}", f"{whole}.weight", shape, begin, end)
                product = self.node("MatMul", f"{name}.{label}", [read, weight])
                if "gate" in config.biases:
                    bias = self.slice(f"{whole}.bias.{label}", f"{whole}.bias", shape[:1], begin, end)
                    product = self.node("Add", f"{name}.{label}.biased", [product, bias])
                halves.append(product)
        gate, up = halves
        return activations.gated(self, config.activation, f"{name}.activation", gate, up, inner)

    def _sum(
        self,
        dense: str,
        part: str,
        product: ir.Value,
        skip: ir.Value,
        norm: str | None,
        name: str,
        post: bool,
    ) -> ir.Value:
        """The product of a dense layer, with its bias, and the skip connection. Their sum is normalized (``post``), or
        the product."""
        config = self._config
        width = config.hidden_size
        if norm is not None and post:
            gamma, *beta = self._norm_weights(norm)
            zeros = self.constant(f"zeros.{width}", np.zeros(width, np.float32))
            bias = self.weight(f"{dense}.bias", width) if part in config.biases else zeros
            inputs = [product, skip, gamma, *(beta or [zeros]), bias]
            return self.fused("SkipLayerNormalization", f"{name}.sum", inputs, epsilon=config.epsilon)
        product = self._biased(dense, product, part, width)
        if norm is not None:
            product = self._norm(norm, product, f"{name}.normalized")
        return self.node("Add", f"{name}.sum", [skip, product])

    def _biased(self, dense: str, product: ir.Value, part: str, width: int) -> ir.Value:
        if part not in self._config.biases:
            return product
        return self.node("Add", f"{dense}.biased", [product, self.weight(f"{dense}.bias", width)])

    def _norm(self, name: str, value: ir.Value, label: str) -> ir.Value:
        inputs = [value, *self._norm_weights(name)]
        if self._family.rms:
            return self.fused(functions.RMS_NORM, label, inputs, epsilon=self._config.epsilon)
        return self.node("LayerNormalization", label, inputs, axis=-1, epsilon=self._config.epsilon)

    def _norm_weights(self, name: str) -> list[ir.Value]:
        width = self._config.hidden_size
        weights = [self._gamma(name, width)]
        return [*weights, self.weight(f"{name}.bias", width)] if "norm" in self._config.biases else weights

    def _gamma(self, name: str, width: int) -> ir.Value:
        name, offset = f"{name}.weight", self._family.rms_offset
        if not offset:
            return self.weight(name, width)
        self.weights.check(name, (width,))
        return self.lazy(
            f"{name}.raised", lambda: np.add(self.weights.read(name, (width,)), np.float32(offset)), (width,)
        )
