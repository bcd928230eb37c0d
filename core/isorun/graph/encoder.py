"""The fused form of a BERT, written from its weights.

Weights are asked for by the names that Hugging Face's BERT gives them, and read one at a time as the file is
written.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import onnx_ir as ir

from isorun.graph import functions

IR_VERSION = 10

ACTIVATIONS = {
    "gelu": "BiasGelu",
    "gelu_new": "BiasGeluTanh",
    "gelu_fast": "BiasGeluTanh",
    "gelu_pytorch_tanh": "BiasGeluTanh",
}
"""Hugging Face's names of activations, and the fused operator for each."""

HEADS = ("sequence-classification", "token-classification", "question-answering")


@dataclass(frozen=True)
class EncoderConfig:
    """The sizes of a BERT, by the names in its ``config.json``.

    ``pooler`` and ``head`` say what stands on the encoder; ``labels`` is the width of a classifier.
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


class Weights(Protocol):
    """Where weights come from."""

    def check(self, name: str, shape: tuple[int, ...]) -> None:
        """Refuse a tensor that is not there or has another shape. Asked of every one before any is read."""

    def read(self, name: str, shape: tuple[int, ...]) -> np.ndarray:
        """The tensor of that name and shape, float32."""


def encoder(config: EncoderConfig, weights: Weights, name: str) -> ir.Model:
    """The fused graph: int64 (batch, sequence) inputs ``input_ids``, ``attention_mask``, ``token_type_ids``.

    Outputs, float32: ``last_hidden_state`` (batch, sequence, hidden); ``pooler_output`` (batch, hidden) where
    there is a pooler; ``logits`` (batch, labels) or (batch, sequence, labels) where there is a classifier;
    ``start_logits`` and ``end_logits`` (batch, sequence) where there is a head for question answering.
    """
    return _Builder(config, weights).model(name)


class _Builder:
    def __init__(self, config: EncoderConfig, weights: Weights) -> None:
        self._config = config
        self._weights = weights
        self._nodes: list[ir.Node] = []
        self._initializers: list[ir.Value] = []

    def model(self, name: str) -> ir.Model:
        config = self._config
        inputs = [_input(each) for each in ("input_ids", "attention_mask", "token_type_ids")]
        hidden = self._embed(inputs[0], inputs[2])
        for layer in range(config.num_hidden_layers):
            hidden = self._layer(f"encoder.layer.{layer}", hidden, inputs[1])
        outputs = self._outputs(hidden)
        opset = functions.opset(functions.BODIES)
        graph = ir.Graph(
            inputs,
            outputs,
            nodes=self._nodes,
            initializers=self._initializers,
            opset_imports={"": opset, functions.DOMAIN: functions.DOMAIN_VERSION},
            name=name,
        )
        used = {node.op_type for node in self._nodes}
        bodies = [body for kind, body in functions.functions(functions.BODIES).items() if kind in used]
        return ir.Model(graph, ir_version=IR_VERSION, producer_name="isorun", functions=bodies)

    def _embed(self, ids: ir.Value, types: ir.Value) -> ir.Value:
        config, prefix = self._config, "embeddings"
        width = config.hidden_size
        positions = self._positions(ids)
        tables = [
            self._weight(f"{prefix}.word_embeddings.weight", config.vocab_size, width),
            self._weight(f"{prefix}.position_embeddings.weight", config.max_position_embeddings, width),
            self._weight(f"{prefix}.token_type_embeddings.weight", config.type_vocab_size, width),
        ]
        return self._fused(
            "EmbedLayerNormalization",
            prefix,
            [ids, types, positions, *tables, *self._norm(f"{prefix}.LayerNorm")],
            epsilon=config.layer_norm_eps,
        )

    def _positions(self, ids: ir.Value) -> ir.Value:
        """0 to the sequence length, (1, S) int64."""
        prefix = "embeddings.positions"
        length = self._node("Shape", f"{prefix}.length", [ids], start=1, end=2)
        scalar = self._node("Squeeze", f"{prefix}.scalar", [length])
        zero, one = (self._constant(f"{prefix}.{label}", np.array(n)) for label, n in (("zero", 0), ("one", 1)))
        row = self._node("Range", f"{prefix}.row", [zero, scalar, one])
        return self._node("Unsqueeze", prefix, [row, self._constant(f"{prefix}.axis", np.array([0]))])

    def _layer(self, prefix: str, hidden: ir.Value, mask: ir.Value) -> ir.Value:
        config = self._config
        width, inner, epsilon = config.hidden_size, config.intermediate_size, config.layer_norm_eps
        context = self._fused(
            "SelfAttention",
            f"{prefix}.attention.self",
            [hidden, mask, *self._qkv(f"{prefix}.attention.self")],
            num_heads=config.num_attention_heads,
            mask_filter_value=functions.LOWEST,
        )
        attended = self._dense(f"{prefix}.attention.output.dense", context, width, width)
        hidden = self._fused(
            "SkipLayerNormalization",
            f"{prefix}.attention.output",
            [
                attended,
                hidden,
                *self._norm(f"{prefix}.attention.output.LayerNorm"),
                self._weight(f"{prefix}.attention.output.dense.bias", width),
            ],
            epsilon=epsilon,
        )
        widened = self._dense(f"{prefix}.intermediate.dense", hidden, width, inner)
        activated = self._fused(
            ACTIVATIONS[config.hidden_act],
            f"{prefix}.intermediate",
            [widened, self._weight(f"{prefix}.intermediate.dense.bias", inner)],
        )
        narrowed = self._dense(f"{prefix}.output.dense", activated, inner, width)
        return self._fused(
            "SkipLayerNormalization",
            f"{prefix}.output",
            [
                narrowed,
                hidden,
                *self._norm(f"{prefix}.output.LayerNorm"),
                self._weight(f"{prefix}.output.dense.bias", width),
            ],
            epsilon=epsilon,
        )

    def _outputs(self, hidden: ir.Value) -> list[ir.Value]:
        config = self._config
        width = config.hidden_size
        outputs = [self._output("last_hidden_state", hidden, "sequence", width)]
        pooled = None
        if config.pooler:
            first = self._node("Gather", "pooler.first", [hidden, self._constant("pooler.zero", np.array(0))], axis=1)
            pooled = self._node("Tanh", "pooler", [self._linear("pooler.dense", first, width, width)])
            outputs.append(self._output("pooler_output", pooled, width))
        if config.head == "sequence-classification":
            assert pooled is not None, "a sequence classifier stands on the pooler"
            logits = self._linear("classifier", pooled, width, config.labels)
            outputs.append(self._output("logits", logits, config.labels))
        elif config.head == "token-classification":
            logits = self._linear("classifier", hidden, width, config.labels)
            outputs.append(self._output("logits", logits, "sequence", config.labels))
        elif config.head == "question-answering":
            both = self._linear("qa_outputs", hidden, width, 2)
            for label, index in (("start_logits", 0), ("end_logits", 1)):
                position = self._constant(f"qa_outputs.{index}", np.array(index))
                outputs.append(
                    self._output(label, self._node("Gather", f"qa.{label}", [both, position], axis=2), "sequence")
                )
        return outputs

    def _output(self, name: str, value: ir.Value, *shape: int | str) -> ir.Value:
        """A graph output of that name: the value itself may be read by other nodes under its own."""
        output = self._node("Identity", f"output.{name}", [value])
        output.name = name
        output.type = ir.TensorType(ir.DataType.FLOAT)
        output.shape = ir.Shape(["batch", *shape])
        return output

    def _qkv(self, prefix: str) -> list[ir.Value]:
        """One weight (H, 3 H) and one bias (3 H) out of the three projections'."""
        width = self._config.hidden_size
        parts = [f"{prefix}.{part}" for part in ("query", "key", "value")]
        for part in parts:
            self._weights.check(f"{part}.weight", (width, width))
            self._weights.check(f"{part}.bias", (width,))

        def weight() -> np.ndarray:
            return np.concatenate([self._weights.read(f"{part}.weight", (width, width)).T for part in parts], axis=1)

        def bias() -> np.ndarray:
            return np.concatenate([self._weights.read(f"{part}.bias", (width,)) for part in parts])

        return [
            self._lazy(f"{prefix}.qkv.weight", weight, (width, 3 * width)),
            self._lazy(f"{prefix}.qkv.bias", bias, (3 * width,)),
        ]

    def _norm(self, prefix: str) -> list[ir.Value]:
        width = self._config.hidden_size
        return [self._weight(f"{prefix}.weight", width), self._weight(f"{prefix}.bias", width)]

    def _dense(self, prefix: str, value: ir.Value, rows: int, columns: int) -> ir.Value:
        """value W, without the bias: the fused operator that follows adds it."""
        self._weights.check(f"{prefix}.weight", (columns, rows))

        def transposed() -> np.ndarray:
            return np.ascontiguousarray(self._weights.read(f"{prefix}.weight", (columns, rows)).T)

        weight = self._lazy(f"{prefix}.weight", transposed, (rows, columns))
        return self._node("MatMul", prefix, [value, weight])

    def _linear(self, prefix: str, value: ir.Value, rows: int, columns: int) -> ir.Value:
        product = self._dense(prefix, value, rows, columns)
        return self._node("Add", f"{prefix}.biased", [product, self._weight(f"{prefix}.bias", columns)])

    def _weight(self, name: str, *shape: int) -> ir.Value:
        self._weights.check(name, shape)
        return self._lazy(name, lambda: self._weights.read(name, shape), shape)

    def _lazy(self, name: str, read: Callable[[], np.ndarray], shape: tuple[int, ...]) -> ir.Value:
        tensor = ir.LazyTensor(lambda: ir.tensor(read()), dtype=ir.DataType.FLOAT, shape=ir.Shape(shape), name=name)
        return self._initializer(name, tensor, shape)

    def _constant(self, name: str, array: np.ndarray) -> ir.Value:
        return self._initializer(name, ir.tensor(array.astype(np.int64), name=name), array.shape)

    def _initializer(self, name: str, tensor: ir.TensorProtocol, shape: tuple[int, ...]) -> ir.Value:
        value = ir.Value(name=name, const_value=tensor, shape=ir.Shape(shape), type=ir.TensorType(tensor.dtype))
        self._initializers.append(value)
        return value

    def _fused(self, kind: str, name: str, inputs: Sequence[ir.Value], **attributes: float) -> ir.Value:
        return self._node(kind, name, inputs, domain=functions.DOMAIN, **attributes)

    def _node(
        self, kind: str, name: str, inputs: Sequence[ir.Value], domain: str = "", **attributes: float
    ) -> ir.Value:
        node = ir.node(kind, list(inputs), attributes, domain=domain, name=name)
        self._nodes.append(node)
        node.outputs[0].name = f"{name}:0"
        return node.outputs[0]


def _input(name: str) -> ir.Value:
    return ir.Value(name=name, shape=ir.Shape(["batch", "sequence"]), type=ir.TensorType(ir.DataType.INT64))
