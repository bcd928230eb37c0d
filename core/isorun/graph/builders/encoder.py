"""Construction of a fused encoder from its weights, which are read one at a time as the file is written."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import onnx_ir as ir

from isorun.graph.builders.architectures import BERT, Architecture
from isorun.graph.ops import functions
from isorun.graph.ops import positions as position_ops

IR_VERSION = 10

ACTIVATIONS = {
    "gelu": "BiasGelu",
    "gelu_new": "BiasGeluTanh",
    "gelu_fast": "BiasGeluTanh",
    "gelu_pytorch_tanh": "BiasGeluTanh",
}
"""The fused operators by Hugging Face's names of activations."""

HEADS = ("sequence-classification", "token-classification", "question-answering")


@dataclass(frozen=True)
class EncoderConfig:
    """The sizes of an encoder, by the names in BERT's ``config.json``.

    ``head`` is one of :data:`HEADS` or ``None``; ``labels`` is the width of a classifier. ``embedding_size`` is the
    width of the embeddings, if it differs from the layers'. ``num_hidden_groups`` groups of ``inner_group_num``
    layers share their weights, if the architecture shares any. ``settings`` is the whole ``config.json``, for what only
    one family has.
    """

    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    intermediate_size: int
    max_position_embeddings: int = 512
    type_vocab_size: int = 2
    layer_norm_eps: float = 1e-12
    hidden_act: str = "gelu"
    pooler: bool = True
    head: str | None = None
    labels: int = 2
    architecture: Architecture = BERT
    embedding_size: int | None = None
    pad_token_id: int = 0
    num_hidden_groups: int = 1
    inner_group_num: int = 1
    relative_attention_num_buckets: int = 32
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def inputs(self) -> tuple[str, ...]:
        """The names of the graph's inputs."""
        types = self.architecture.types == "input" and self.type_vocab_size > 0
        return ("input_ids", "attention_mask", "token_type_ids")[: 3 if types else 2]


class Weights(Protocol):
    """A source of weights, by Hugging Face's tensor names."""

    def check(self, name: str, shape: tuple[int, ...]) -> None:
        """Reject a tensor that is missing or has another shape. Called for all tensors before any is read."""

    def read(self, name: str, shape: tuple[int, ...]) -> np.ndarray:
        """Read a tensor of that name and shape, float32."""


def encoder(config: EncoderConfig, weights: Weights, name: str) -> ir.Model:
    """Build the fused graph.

    Inputs, int64 (batch, sequence): ``input_ids``, ``attention_mask`` and, if the architecture has them,
    ``token_type_ids``. Outputs, float32: ``last_hidden_state`` (batch, sequence, hidden); with a pooler,
    ``pooler_output`` (batch, hidden); with a classifier, ``logits`` (batch, labels) or (batch, sequence, labels); with
    a question answering head, ``start_logits`` and ``end_logits`` (batch, sequence).

    Raises:
        InvalidModel: the settings of a family are invalid, or not supported.
    """
    from isorun.graph.builders import deberta, jina, t5

    builders = {"deberta": deberta.DebertaBuilder, "jina": jina.JinaBuilder, "t5": t5.T5Builder}
    return builders.get(config.architecture.builder, BertBuilder)(config, weights).model(name)


class Builder:
    """Adds nodes and weights to a graph.

    Args:
        weights: where they are read.
    """

    def __init__(self, weights: Weights) -> None:
        self.weights = weights
        self._nodes: list[ir.Node] = []
        self._initializers: dict[str, ir.Value] = {}

    def graph(self, name: str, inputs: Mapping[str, ir.Value], outputs: Sequence[ir.Value]) -> ir.Model:
        """The model of what was added."""
        opset = functions.opset(functions.BODIES)
        graph = ir.Graph(
            list(inputs.values()),
            list(outputs),
            nodes=self._nodes,
            initializers=list(self._initializers.values()),
            opset_imports={"": opset},
            name=name,
        )
        model = ir.Model(graph, ir_version=IR_VERSION, producer_name="isorun")
        functions.carry(model)
        return model

    @staticmethod
    def input(name: str) -> ir.Value:
        """An input, int64 (batch, sequence)."""
        return ir.Value(name=name, shape=ir.Shape(["batch", "sequence"]), type=ir.TensorType(ir.DataType.INT64))

    def output(self, name: str, value: ir.Value, *shape: int | str) -> ir.Value:
        """Add a graph output; ``Identity`` keeps the name of the value, which other nodes may read."""
        output = self.node("Identity", f"output.{name}", [value])
        output.name = name
        output.type = ir.TensorType(ir.DataType.FLOAT)
        output.shape = ir.Shape(["batch", *shape])
        return output

    def dense(self, prefix: str, value: ir.Value, rows: int, columns: int, name: str | None = None) -> ir.Value:
        """value @ W without the bias, which the following fused operator adds. ``name`` defaults to the prefix."""
        self.weights.check(f"{prefix}.weight", (columns, rows))

        def transposed() -> np.ndarray:
            return np.ascontiguousarray(self.weights.read(f"{prefix}.weight", (columns, rows)).T)

        weight = self.lazy(f"{prefix}.weight", transposed, (rows, columns))
        return self.node("MatMul", name or prefix, [value, weight])

    def weight(self, name: str, *shape: int) -> ir.Value:
        self.weights.check(name, shape)
        return self.lazy(name, lambda: self.weights.read(name, shape), shape)

    def lazy(self, name: str, read: Callable[[], np.ndarray], shape: tuple[int, ...]) -> ir.Value:
        tensor = ir.LazyTensor(lambda: ir.tensor(read()), dtype=ir.DataType.FLOAT, shape=ir.Shape(shape), name=name)
        return self.initializer(name, tensor, shape)

    def constant(self, name: str, array: np.ndarray) -> ir.Value:
        return self.initializer(name, ir.tensor(array, name=name), array.shape)

    def initializer(self, name: str, tensor: ir.TensorProtocol, shape: tuple[int, ...]) -> ir.Value:
        """Add an initializer, unless there is one of that name."""
        if name not in self._initializers:
            kind = ir.TensorType(tensor.dtype)
            self._initializers[name] = ir.Value(name=name, const_value=tensor, shape=ir.Shape(shape), type=kind)
        return self._initializers[name]

    def fused(self, kind: str, name: str, inputs: Sequence[ir.Value | None], **attributes: float) -> ir.Value:
        return self.node(kind, name, inputs, domain=functions.DOMAIN, **attributes)

    def node(
        self, kind: str, name: str, inputs: Sequence[ir.Value | None], domain: str = "", **attributes: float | list[int]
    ) -> ir.Value:
        node = ir.node(kind, list(inputs), attributes, domain=domain, name=name)
        self._nodes.append(node)
        node.outputs[0].name = f"{name}:0"
        return node.outputs[0]


class BertBuilder(Builder):
    """Builds BERT and encoders that are built alike; subclasses differ in some of its parts."""

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
        outputs = self._outputs(hidden)
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
        """The position table, plus the row of the only token type if the architecture has no type input."""
        name, shape = "embeddings.position_embeddings.weight", (self._config.max_position_embeddings, width)
        if self._architecture.types != "zero":
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
        rows = position_ops.buckets(buckets, farthest)
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
        given = {"hidden": hidden, "key_mask": mask, "qkv_weight": weight, "qkv_bias": qkv_bias, "bias": bias}
        return self.fused(
            functions.ATTENTION,
            name,
            functions.ordered(functions.ATTENTION, given | features),
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
        activated = self.fused(
            ACTIVATIONS[config.hidden_act],
            f"{name}.activation",
            [widened, self.weight(f"{prefix}.{names.intermediate}.bias", inner)],
        )
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

    def _outputs(self, hidden: ir.Value) -> list[ir.Value]:
        config, architecture = self._config, self._architecture
        width = config.hidden_size
        outputs = [self.output("last_hidden_state", hidden, "sequence", width)]
        pooled = None
        if config.pooler and architecture.pooler is not None:
            pooled = self._first_token(architecture.pooler, "Tanh", hidden)
            outputs.append(self.output("pooler_output", pooled, width))
        if config.head == "sequence-classification":
            head = architecture.classifier
            if not architecture.classifies_pooled:
                pooled = self._first_token(head.dense, self._head_activation(), hidden)
            assert pooled is not None, "this classifier reads the pooler"
            logits = self._linear(head.output, pooled, width, config.labels)
            outputs.append(self.output("logits", logits, config.labels))
        elif config.head == "token-classification":
            logits = self._linear("classifier", hidden, width, config.labels)
            outputs.append(self.output("logits", logits, "sequence", config.labels))
        elif config.head == "question-answering":
            both = self._linear("qa_outputs", hidden, width, 2)
            split = ir.node("Split", [both], {"axis": -1}, num_outputs=2, name="qa_outputs.split")
            self._nodes.append(split)
            last = self.constant("qa_outputs.last", np.array([-1]))
            for label, part in zip(("start_logits", "end_logits"), split.outputs, strict=True):
                part.name = f"qa_outputs.{label}"
                outputs.append(self.output(label, self.node("Squeeze", f"qa.{label}", [part, last]), "sequence"))
        return outputs

    def _head_activation(self) -> str:
        return self._architecture.classifier.activation

    def _first_token(self, dense: str, activation: str, hidden: ir.Value) -> ir.Value:
        """Dense layer and activation at the first position, (B, H)."""
        width = self._config.hidden_size
        zero = self.constant("first.position", np.array(0))
        first = self.node("Gather", f"{dense}.first", [hidden, zero], axis=1)
        if activation in ACTIVATIONS.values():
            product = self.dense(dense, first, width, width)
            return self.fused(activation, f"{dense}.activated", [product, self.weight(f"{dense}.bias", width)])
        return self.node(activation, f"{dense}.activated", [self._linear(dense, first, width, width)])

    def _qkv(self, prefix: str) -> tuple[ir.Value, ir.Value | None]:
        """The merged weight (H, 3 H) and bias (3 H) of the three projections."""
        width, names = self._config.hidden_size, self._architecture.layer
        parts = [f"{prefix}.{part}" for part in (names.query, names.key, names.value)]
        for part in parts:
            self.weights.check(f"{part}.weight", (width, width))
            self.weights.check(f"{part}.bias", (width,))

        def weight() -> np.ndarray:
            return np.concatenate([self.weights.read(f"{part}.weight", (width, width)).T for part in parts], axis=1)

        def bias() -> np.ndarray:
            return np.concatenate([self.weights.read(f"{part}.bias", (width,)) for part in parts])

        name = f"{parts[0].rpartition('.')[0]}.qkv"
        return (
            self.lazy(f"{name}.weight", weight, (width, 3 * width)),
            self.lazy(f"{name}.bias", bias, (3 * width,)),
        )

    def _norm(self, prefix: str, width: int) -> list[ir.Value]:
        return [self.weight(f"{prefix}.weight", width), self.weight(f"{prefix}.bias", width)]

    def _linear(self, prefix: str, value: ir.Value, rows: int, columns: int) -> ir.Value:
        product = self.dense(prefix, value, rows, columns)
        return self.node("Add", f"{prefix}.biased", [product, self.weight(f"{prefix}.bias", columns)])


class Named:
    """Adds nodes with a name prefix to a builder."""

    def __init__(self, builder: Builder, prefix: str) -> None:
        self._builder, self._prefix = builder, prefix

    def node(self, label: str, kind: str, inputs: Sequence[ir.Value], **attributes: int | list[int]) -> ir.Value:
        return self._builder.node(kind, f"{self._prefix}.{label}", inputs, "", **attributes)

    def constant(self, label: str, array: np.ndarray) -> ir.Value:
        return self._builder.constant(f"{self._prefix}.{label}", array)
