"""BERT and the encoders that are built alike."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import onnx_ir as ir

from isorun.errors import InvalidModel
from isorun.graph.builders import activations, heads
from isorun.graph.builders.builder import Builder, Named, Weights
from isorun.graph.builders.encoder_config import EncoderConfig
from isorun.graph.ops import functions
from isorun.graph.ops import positions as position_ops


class BertBuilder(Builder):
    """Builds BERT; subclasses differ in some of its parts."""

    def __init__(self, config: EncoderConfig, weights: Weights) -> None:
        super().__init__(weights)
        self._config = config
        self._architecture = config.architecture

    def model(self, name: str) -> ir.Model:
        inputs = {label: self.input(label) for label in self._config.inputs}
        ids, mask = inputs["input_ids"], inputs["attention_mask"]
        hidden = self._project(self._embed(inputs))
        bias = self._bias(ids)
        for index, weights in enumerate(self._layers()):
            hidden = self._layer(f"layer.{index}", weights, hidden, mask, bias)
        outputs = self._outputs(hidden, inputs)
        return self.graph(name, inputs, outputs)

    def _layers(self) -> Iterator[str]:
        """The prefix of each layer's weights, in execution order; layers that share weights have the same prefix."""
        config = self._config
        for layer in range(config.num_hidden_layers):
            group = layer * config.num_hidden_groups // config.num_hidden_layers
            for inner in range(config.inner_group_num):
                yield self._architecture.layers.format(layer=layer, group=group, inner=inner)

    def _embed(self, inputs: Mapping[str, ir.Value]) -> ir.Value:
        """The embeddings, of the graph's inputs by name."""
        ids, types = inputs["input_ids"], inputs.get("token_type_ids")
        config, prefix = self._config, "embeddings"
        width = config.embedding_size or config.hidden_size
        nodes = Named(self, f"{prefix}.positions")
        counts = self._architecture.padding_id is not None
        positions = (
            position_ops.counted(nodes, ids, config.pad_token_id) if counts else position_ops.in_order(nodes, ids)
        )
        words = self.weight(f"{prefix}.word_embeddings.weight", config.vocab_size, width)
        norm = self._norm(f"{prefix}.LayerNorm", width)
        typed = None
        if types is not None:
            typed = self.weight(f"{prefix}.token_type_embeddings.weight", config.type_vocab_size, width)
        return self.fused(
            functions.EMBEDDING,
            prefix,
            [ids, types, positions, words, self._position_table(width), typed, *norm],
            epsilon=config.layer_norm_eps,
        )

    def _position_table(self, width: int) -> ir.Value:
        """The position table, plus the row of the only token type if that is no input."""
        name, shape = "embeddings.position_embeddings.weight", (self._config.max_position_embeddings, width)
        if self._architecture.types != "several" or "token_type_ids" in self._config.inputs:
            return self.weight(name, *shape)
        types, types_shape = "embeddings.token_type_embeddings.weight", (self._config.type_vocab_size, width)
        self.weights.check(name, shape)
        self.weights.check(types, types_shape)

        def with_type_row() -> np.ndarray:
            total: np.ndarray = np.add(
                self.weights.read(name, shape), self.weights.read(types, types_shape)[0], dtype=np.float32
            )
            return total

        return self.lazy(f"{name}.raised", with_type_row, shape)

    def _project(self, embedded: ir.Value) -> ir.Value:
        config, architecture = self._config, self._architecture
        width = config.embedding_size or config.hidden_size
        if architecture.projection is None or (width == config.hidden_size and not architecture.always_projects):
            return embedded
        return self._linear(architecture.projection, embedded, width, config.hidden_size)

    def _bias(self, ids: ir.Value) -> ir.Value | None:
        """The bias on the scores of every layer."""
        if self._architecture.relative_bias is None:
            return None
        farthest = self._config.settings.get("relative_attention_max_distance", position_ops.FARTHEST)
        buckets, heads = self._config.relative_attention_num_buckets, self._config.num_attention_heads
        name, shape = f"{self._architecture.relative_bias}.weight", (buckets, heads)
        count = self._architecture.buckets or buckets
        if farthest <= count // 4:  # the logarithm of their widths would be 0 or negative
            raise InvalidModel(
                f"config.json: relative_attention_max_distance must be above {count // 4}, a quarter of "
                f"relative_attention_num_buckets, got {farthest}"
            )
        rows = position_ops.buckets(count, farthest)
        self.weights.check(name, shape)
        table = self.lazy(f"{name}.by_distance", lambda: self.weights.read(name, shape)[rows], (len(rows), heads))
        return position_ops.relative_bias(Named(self, "relative_bias"), ids, table, len(rows) // 2)

    def _layer(self, name: str, prefix: str, hidden: ir.Value, mask: ir.Value, bias: ir.Value | None) -> ir.Value:
        """Add a layer; ``name`` is the prefix of its nodes, ``prefix`` of its weights."""
        names, width = self._architecture.layer, self._config.hidden_size
        context = self._attend(f"{name}.attention", prefix, hidden, mask, bias)
        hidden = self._skip(
            f"{name}.attended",
            self.dense(f"{prefix}.{names.attention_output}", context, width, width, f"{name}.attention_output"),
            hidden,
            f"{prefix}.{names.attention_output}.bias",
            f"{prefix}.{names.attention_norm}",
        )
        return self._feed_forward(name, prefix, hidden)

    def _attend(
        self, name: str, prefix: str, hidden: ir.Value, mask: ir.Value, bias: ir.Value | None, **features: ir.Value
    ) -> ir.Value:
        """Add a self-attention, with features of the operator by the names of its inputs."""
        weight, qkv_bias = self._qkv(prefix)
        features_by_name = {
            "hidden": hidden,
            "key_mask": mask,
            "qkv_weight": weight,
            "qkv_bias": qkv_bias,
            "bias": bias,
        }
        return self.fused(
            functions.ATTENTION,
            name,
            functions.ordered(functions.ATTENTION, features_by_name | features),
            num_heads=self._config.num_attention_heads,
            mask_filter_value=functions.LOWEST,
            **self._attention_attributes(),
        )

    def _attention_attributes(self) -> dict[str, float]:
        return {}

    def _feed_forward(self, name: str, prefix: str, hidden: ir.Value) -> ir.Value:
        config, names = self._config, self._architecture.layer
        width, inner = config.hidden_size, config.intermediate_size
        widened = self.dense(f"{prefix}.{names.intermediate}", hidden, width, inner, f"{name}.intermediate")
        bias = self.weight(f"{prefix}.{names.intermediate}.bias", inner)
        activated = activations.activated(self, config.hidden_act, f"{name}.activation", widened, inner, bias)
        return self._skip(
            name,
            self.dense(f"{prefix}.{names.output}", activated, inner, width, f"{name}.output"),
            hidden,
            f"{prefix}.{names.output}.bias",
            f"{prefix}.{names.output_norm}",
        )

    def _skip(self, name: str, product: ir.Value, skip: ir.Value, bias: str, norm: str) -> ir.Value:
        width = self._config.hidden_size
        return self.fused(
            "SkipLayerNormalization",
            name,
            [product, skip, *self._norm(norm, width), self.weight(bias, width)],
            epsilon=self._config.layer_norm_eps,
        )

    def _outputs(self, hidden: ir.Value, inputs: Mapping[str, ir.Value]) -> list[ir.Value]:
        config, architecture = self._config, self._architecture
        width = config.hidden_size
        outputs = [self.output("last_hidden_state", hidden, "sequence", width)]
        pooled = None
        if config.pooler and architecture.pooler is not None:
            pooled = self._pooled(architecture.pooler, hidden)
            outputs.append(self.output("pooler_output", pooled, width))
        if config.task is not None and config.head is not None:
            read = heads.Read(
                *(inputs["input_ids"], inputs["attention_mask"], hidden, pooled, width),
                *(config.layer_norm_eps, config.pad_token_id, config.vocab_size),
            )
            outputs += heads.add(self, config.task, config.head, config.labels, read)
        return outputs

    def _pooled(self, dense: str, hidden: ir.Value) -> ir.Value:
        """The first position through a dense layer, (B, H)."""
        width = self._config.hidden_size
        zero = self.constant("first.position", np.array(0))
        first = self.node("Gather", f"{dense}.first", [hidden, zero], axis=1)
        return self.node("Tanh", f"{dense}.activated", [self._linear(dense, first, width, width)])

    def _qkv(self, prefix: str) -> tuple[ir.Value, ir.Value | None]:
        """The merged weight (H, 3 H) and bias (3 H) of the three projections."""
        width, names = self._config.hidden_size, self._architecture.layer
        parts = [f"{prefix}.{part}" for part in (names.query, names.key, names.value)]
        name = f"{parts[0].rpartition('.')[0]}.qkv"
        weight, bias = (
            self.joined(f"{name}.{kind}", {f"{part}.{kind}": shape for part in parts})
            for kind, shape in (("weight", (width, width)), ("bias", (width,)))
        )
        return weight, bias

    def _norm(self, prefix: str, width: int) -> list[ir.Value]:
        return [self.weight(f"{prefix}.weight", width), self.weight(f"{prefix}.bias", width)]

    def _linear(self, prefix: str, value: ir.Value, rows: int, columns: int) -> ir.Value:
        product = self.dense(prefix, value, rows, columns)
        return self.node("Add", f"{prefix}.biased", [product, self.weight(f"{prefix}.bias", columns)])
