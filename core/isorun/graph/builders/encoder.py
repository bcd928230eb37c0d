"""Construction of fused encoders from their weights."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import onnx_ir as ir

from isorun.graph.builders import activations, heads, relative
from isorun.graph.builders.builder import Builder, Weights
from isorun.graph.builders.encoder_config import EncoderConfig
from isorun.graph.io.nodes import needed
from isorun.graph.ops import functions
from isorun.graph.ops import positions as position_ops


def encoder(config: EncoderConfig, weights: Weights, name: str = "encoder") -> ir.Model:
    """Build the fused graph.

    Inputs, int64 (batch, sequence): ``input_ids``, ``attention_mask`` and, if the architecture has them,
    ``token_type_ids``. Outputs, float32: ``last_hidden_state`` (batch, sequence, hidden); with a pooler,
    ``pooler_output`` (batch, hidden); with a head, those of :func:`isorun.graph.builders.heads.add`.

    Raises:
        InvalidModel: the settings of a family are invalid, or not supported.
    """
    return _EncoderBuilder(config, weights).model(name)


class _EncoderBuilder(Builder):
    def __init__(self, config: EncoderConfig, weights: Weights) -> None:
        super().__init__(weights)
        self._config = config
        self._architecture = config.architecture

    def model(self, name: str) -> ir.Model:
        inputs = {label: self.input(label) for label in self._config.inputs}
        hidden = self._project(self._embed(inputs))
        features_of = relative.KINDS[self._architecture.relative](self, self._config, inputs["input_ids"])
        for index, prefix in enumerate(self._layers()):
            features, attributes = features_of(index, prefix)
            features = {"key_mask": inputs["attention_mask"], **features}
            hidden = self._layer(index, prefix, hidden, features, attributes)
        return self.graph(name, inputs, self._outputs(hidden, inputs))

    def _layers(self) -> Iterator[str]:
        """The prefix of each layer's weights, in execution order; layers that share weights have the same prefix."""
        config = self._config
        for layer in range(config.num_hidden_layers):
            group = layer * config.num_hidden_groups // config.num_hidden_layers
            for inner in range(config.inner_group_num):
                yield self._architecture.layers.format(layer=layer, group=group, inner=inner)

    def _embed(self, inputs: Mapping[str, ir.Value]) -> ir.Value:
        """The embeddings, of the graph's inputs by name."""
        config, architecture = self._config, self._architecture
        ids, mask, types = inputs["input_ids"], inputs["attention_mask"], inputs.get("token_type_ids")
        width = config.embedding_size or config.hidden_size
        type_table, type_shape = "embeddings.token_type_embeddings.weight", (config.type_vocab_size, width)
        only_type = {type_table: type_shape} if architecture.types == "several" and config.type_vocab_size == 1 else {}
        has_positions = architecture.has_positions(config.settings)
        values: dict[str, ir.Value | None] = {"input_ids": ids, "token_type_ids": types}
        if has_positions:
            values["position_ids"] = self._counted(ids)
        factor = config.hidden_size**0.5 if architecture.scaled else 1.0
        shape, added = (config.vocab_size, width), {} if has_positions else only_type
        values["word"] = self._changed(f"{config.words}.weight", shape, added, factor)
        kind, attributes = "Embedding", {}
        if architecture.embedding_norm is not None:
            kind, attributes = functions.EMBEDDING, {"epsilon": config.layer_norm_eps}
            norm = self._norm_weights(architecture.embedding_norm, width)
            values |= dict(zip(("gamma", "beta"), norm, strict=False))
        if types is not None:
            values["token_type"] = self.weight(type_table, *type_shape)
        if has_positions:
            shape = (config.max_position_embeddings, width)
            values["position"] = self._changed("embeddings.position_embeddings.weight", shape, only_type)
        embedded = self.fused(kind, "embeddings", functions.ordered(kind, values), **attributes)
        if not architecture.masked:
            return embedded
        op = self.under("embeddings")
        return op("Mul", embedded, op("Cast", op("Unsqueeze", mask, [2]), to=int(ir.DataType.FLOAT)))

    def _counted(self, ids: ir.Value) -> ir.Value:
        """The rows of the table of positions."""
        if self._architecture.padding_id is None:
            return self.positions(ids)
        return position_ops.counted(self.under("embeddings.positions"), ids, needed(self._config.pad_token_id))

    def _changed(
        self, name: str, shape: tuple[int, ...], added: Mapping[str, tuple[int, ...]], factor: float = 1.0
    ) -> ir.Value:
        """A table plus the first row of others, multiplied by a factor."""
        if not added and factor == 1:
            return self.weight(name, *shape)

        def change(table: np.ndarray, *others: np.ndarray) -> np.ndarray:
            for other in others:
                table = np.add(table, other[0], dtype=np.float32)
            return np.asarray(table * np.float32(factor))

        return self.computed(f"{name}.raised", {name: shape, **added}, change, shape)

    def _project(self, embedded: ir.Value) -> ir.Value:
        config, architecture = self._config, self._architecture
        width = config.embedding_size or config.hidden_size
        if architecture.projection is None or (width == config.hidden_size and not architecture.always_projects):
            return embedded
        return self._linear(architecture.projection, embedded, width, config.hidden_size)

    def _layer(
        self,
        index: int,
        prefix: str,
        hidden: ir.Value,
        features: Mapping[str, ir.Value],
        attributes: Mapping[str, float],
    ) -> ir.Value:
        """Add a layer; ``prefix`` is that of its weights."""
        config, architecture = self._config, self._architecture
        name, width = f"layer.{index}", config.hidden_size
        output, down = f"{prefix}.{architecture.attention_output}", f"{prefix}.{architecture.down}"
        first, second = (norm and f"{prefix}.{norm}" for norm in architecture.before)
        after_attention, after_mlp = (norm and f"{prefix}.{norm}" for norm in architecture.after)
        post_mlp = architecture.post
        if index == config.num_hidden_layers - 1 and not (architecture.post or architecture.rms):
            after_mlp, post_mlp = architecture.final_norm, True  # one operator adds and normalizes
        read = self._norm(first if index or architecture.first_norm else None, hidden, f"{name}.attention_norm")
        context = self._attend(f"{name}.attention", prefix, {"hidden": read, **features}, attributes)
        rows = config.num_attention_heads * config.head_width
        product = self.dense(output, context, rows, width, f"{name}.attention_output")
        hidden = self._sum(
            f"{name}.attended", product, hidden, output, "attention_output", after_attention, architecture.post
        )
        inner = self._feed_forward(name, prefix, self._norm(second, hidden, f"{name}.output_norm"))
        product = self.dense(down, inner, config.intermediate_size, width, f"{name}.output")
        return self._sum(name, product, hidden, down, "down", after_mlp, post_mlp)

    def _attend(
        self, name: str, prefix: str, features: Mapping[str, ir.Value], attributes: Mapping[str, float]
    ) -> ir.Value:
        """Add a self-attention, with features of the operator by the names of its inputs."""
        config, architecture, size = self._config, self._architecture, self._config.head_width
        query, key = (heads * size for heads in (config.num_attention_heads, config.num_key_value_heads or 0))
        key = key or query
        parts = [
            f"{prefix}.{part}"
            for part in (architecture.query, architecture.key, architecture.value)
            if part is not None
        ]
        rows = dict(zip(parts, [query, key, key] if len(parts) == 3 else [query + 2 * key], strict=True))
        joined = f"{parts[0].rpartition('.')[0]}.qkv"
        shapes = {f"{part}.weight": (count, config.hidden_size) for part, count in rows.items()}
        values: dict[str, ir.Value | None] = {**features, "qkv_weight": self.joined(f"{joined}.weight", shapes)}
        attributes = {"num_heads": config.num_attention_heads, "mask_filter_value": functions.LOWEST, **attributes}
        if config.has_bias("attention"):
            biases = {f"{part}.bias": (count,) for part, count in rows.items()}
            values["qkv_bias"] = self.joined(f"{joined}.bias", biases)
        if architecture.head_norms is not None:
            for label, norm in zip(("query_gamma", "key_gamma"), architecture.head_norms, strict=True):
                values[label] = self._gamma(f"{prefix}.{norm}", size)
            attributes["norm_epsilon"] = config.layer_norm_eps
        if query != key:
            attributes["head_size"] = size
        if architecture.causal:
            attributes["causal"] = 1
        scale = architecture.scale if config.scale is None else config.scale
        if scale is not None and not np.isclose(scale, size**-0.5, rtol=1e-6):
            attributes["scale"] = scale
        return self.fused(functions.ATTENTION, name, functions.ordered(functions.ATTENTION, values), **attributes)

    def _feed_forward(self, name: str, prefix: str, read: ir.Value) -> ir.Value:
        """Add the layers before the last one of the MLP."""
        config, architecture = self._config, self._architecture
        width, inner, activation = config.hidden_size, config.intermediate_size, config.hidden_act
        gate, has_bias = f"{prefix}.{architecture.gate}", config.has_bias("gate")
        if architecture.halves is not None:
            products = {}
            for label in ("gate", "up"):
                begin = inner * architecture.halves.index(label)
                span, shape = (begin, begin + inner), (2 * inner, width)
                weight = self.slice(f"{gate}.weight.{label}", f"{gate}.weight", shape, *span)
                product = self.node("MatMul", f"{name}.{label}", [read, weight])
                if has_bias:
                    bias = self.slice(f"{gate}.bias.{label}", f"{gate}.bias", shape[:1], *span)
                    product = self.node("Add", f"{name}.{label}.biased", [product, bias])
                products[label] = product
        elif architecture.up is not None:
            products = {
                label: self._biased(dense, self.dense(dense, read, width, inner, f"{name}.{label}"), "gate", inner)
                for label, dense in (("gate", gate), ("up", f"{prefix}.{architecture.up}"))
            }
        else:
            product = self.dense(gate, read, width, inner, f"{name}.intermediate")
            added = self.weight(f"{gate}.bias", inner) if has_bias else None
            return activations.activated(self, activation, f"{name}.activation", product, inner, added)
        return activations.gated(self, activation, f"{name}.activation", products["gate"], products["up"], inner)

    def _sum(
        self, name: str, product: ir.Value, skip: ir.Value, dense: str, part: str, norm: str | None, post: bool
    ) -> ir.Value:
        """The product of a dense layer, with its bias, and the skip connection. Their sum is normalized (``post``), or
        the product."""
        config, width = self._config, self._config.hidden_size
        if norm is None or not post:
            biased = self._norm(norm, self._biased(dense, product, part, width), f"{name}.normalized")
            return self.node("Add", name, [skip, biased])
        gamma, *beta = self._norm_weights(norm, width)
        bias = self.weight(f"{dense}.bias", width) if config.has_bias(part) else None
        if not beta or bias is None:
            zeros = self.constant(f"zeros.{width}", np.zeros(width, np.float32))
            beta, bias = beta or [zeros], bias or zeros
        inputs = [product, skip, gamma, *beta, bias]
        return self.fused("SkipLayerNormalization", name, inputs, epsilon=config.layer_norm_eps)

    def _outputs(self, hidden: ir.Value, inputs: Mapping[str, ir.Value]) -> list[ir.Value]:
        config, architecture, width = self._config, self._architecture, self._config.hidden_size
        if architecture.rms:
            hidden = self._norm(architecture.final_norm, hidden, "final_norm")
        outputs = [self.output("last_hidden_state", hidden, "sequence", width)]
        pooled, dense = None, architecture.pooler
        if config.pooler and dense is not None:
            op = self.under(dense)
            pooled = op("Tanh", self._linear(dense, op("Gather", hidden, 0, axis=1), width, width))
            outputs.append(self.output("pooler_output", pooled, width))
        if config.task is not None and config.head is not None:
            read = heads.Read(config, inputs["input_ids"], inputs["attention_mask"], hidden, pooled)
            outputs += heads.add(self, config.task, config.head, config.labels, read)
        return outputs

    def _norm(self, name: str | None, value: ir.Value, label: str) -> ir.Value:
        """A normalized value; the value itself without a name."""
        if name is None:
            return value
        inputs, epsilon = [value, *self._norm_weights(name, self._config.hidden_size)], self._config.layer_norm_eps
        if self._architecture.rms:
            return self.fused(functions.RMS_NORM, label, inputs, epsilon=epsilon)
        return self.node("LayerNormalization", label, inputs, axis=-1, epsilon=epsilon)

    def _norm_weights(self, name: str, width: int) -> list[ir.Value]:
        gamma = self._gamma(name, width)
        return [gamma, self.weight(f"{name}.bias", width)] if self._config.has_bias("norm") else [gamma]

    def _gamma(self, name: str, width: int) -> ir.Value:
        name, offset = f"{name}.weight", self._architecture.rms_offset
        if not offset:
            return self.weight(name, width)
        return self.computed(
            f"{name}.raised", {name: (width,)}, lambda gamma: np.add(gamma, np.float32(offset)), (width,)
        )

    def _linear(self, prefix: str, value: ir.Value, rows: int, columns: int) -> ir.Value:
        product = self.dense(prefix, value, rows, columns)
        return self.node("Add", f"{prefix}.biased", [product, self.weight(f"{prefix}.bias", columns)])

    def _biased(self, dense: str, product: ir.Value, part: str, width: int) -> ir.Value:
        if not self._config.has_bias(part):
            return product
        return self.node("Add", f"{dense}.biased", [product, self.weight(f"{dense}.bias", width)])
