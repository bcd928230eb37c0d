"""Heads on an encoder: classes of texts and tokens, spans of answers, words behind masks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from isorun.graph.builders import activations
from isorun.graph.builders.builder import Builder
from isorun.graph.ops.adding import Nodes
from isorun.graph.tasks import ANSWERS, SEQUENCE

SPARSE = "sparse_embedding"
"""The output with the weights of words in a text."""


@dataclass(frozen=True)
class Head:
    """A head, by the names of its layers.

    Attributes:
        output: the last dense layer.
        reads: what the head reads of the hidden states: ``tokens`` (all); ``pooler``; ``first``; ``last`` (the last
            token that is not padding by its id); ``end`` (the last token in the mask); ``mean`` of the tokens in the
            mask; ``late`` for the mean of the tokens' logits; or ``classifier_pooling``, if that key of
            ``config.json`` says which.
        dense: a dense layer before; ``None`` if there is none.
        activation: after it: one of :data:`activations.NAMES`, or the key of ``config.json`` that says which.
        norm: a layer normalization after the activation; ``None`` if there is none.
        inner: the width of the dense layer; ``None`` for the encoder's.
        dense_bias, norm_bias: whether these layers have biases.
        has_bias: whether the last layer has a bias.
        bias: its tensor; empty for the last layer's own.
        tied: the table of words whose transpose the last layer is; ``None`` if it has a matrix of its own.
        splade: how the logits of a text become one vector: ``max`` or ``sum``, and ``relu`` or ``log1p_relu``;
            ``None`` if they do not.
        words: the rows of a table of words that the last layer is the difference of, or its only one; ``None`` if it
            is all of them.
        unless: a key of ``config.json``, true by default, and the head in place of this one where it is false; ``None``
            if there is no other.
        flags: the fields that a key of ``config.json`` decides, each with the key and its default.
    """

    output: str
    reads: str = "tokens"
    dense: str | None = None
    activation: str = "tanh"
    norm: str | None = None
    inner: int | None = None
    dense_bias: bool = True
    norm_bias: bool = True
    has_bias: bool = True
    bias: str = ""
    tied: str | None = None
    splade: tuple[str, str] | None = None
    words: tuple[int, int | None] | None = None
    unless: tuple[str, Head] | None = None
    flags: Mapping[str, tuple[str, bool]] = field(default_factory=dict)


@dataclass(frozen=True)
class Read:
    """What an encoder gives to a head.

    Attributes:
        ids, mask: the graph's inputs.
        hidden: the hidden states, (B, S, width).
        pooled: the pooler's output, (B, width); ``None`` if there is none.
        width: of the encoder.
        epsilon: of normalizations.
        padding_id: the id of padding.
        vocabulary: the number of words.
    """

    ids: ir.Value
    mask: ir.Value
    hidden: ir.Value
    pooled: ir.Value | None
    width: int
    epsilon: float
    padding_id: int | None
    vocabulary: int


def add(builder: Builder, task: str, head: Head, labels: int, read: Read) -> list[ir.Value]:
    """Add a head to a graph.

    Args:
        builder: of the graph.
        task: one of the values of :data:`isorun.graph.tasks.TASKS`.
        head: its layers.
        labels: the width of the logits.
        read: what it reads.

    Returns:
        The outputs, float32: ``logits``, (batch, labels) of a sequence classifier or (batch, sequence, labels); of
        question answering, ``start_logits`` and ``end_logits``, (batch, sequence); with ``splade``,
        ``sparse_embedding``, (batch, labels), too.
    """
    logits = _logits(builder, head, labels, read)
    if task == SEQUENCE:
        return [builder.output("logits", logits, labels)]
    if task != ANSWERS:
        outputs = [builder.output("logits", logits, "sequence", labels)]
        if head.splade is not None:
            outputs.append(builder.output(SPARSE, _splade(builder, logits, read.mask, *head.splade), labels))
        return outputs
    op = builder.under(head.output)
    ends = zip(("start_logits", "end_logits"), op.several(2, "Split", logits, axis=-1), strict=True)
    return [builder.output(label, op("Squeeze", end, [-1]), "sequence") for label, end in ends]


def _logits(builder: Builder, head: Head, labels: int, read: Read) -> ir.Value:
    value, width = _value(builder, head, read), read.width
    if head.dense is not None:
        inner = head.inner or width
        bias = builder.weight(f"{head.dense}.bias", inner) if head.dense_bias else None
        product = builder.dense(head.dense, value, width, inner)
        value = activations.activated(builder, head.activation, f"{head.dense}.activated", product, inner, bias)
        width = inner
        if head.norm is not None:
            weights = [builder.weight(f"{head.norm}.weight", width)]
            weights += [builder.weight(f"{head.norm}.bias", width)] if head.norm_bias else []
            value = builder.node(
                "LayerNormalization", f"{head.norm}.normalized", [value, *weights], axis=-1, epsilon=read.epsilon
            )
    table = f"{head.tied or head.output}.weight"
    if head.words is None:
        matrix = builder.joined(f"{head.output}.weight", {table: (labels, width)})
    else:
        matrix = _difference(builder, table, (read.vocabulary, width), *head.words)
    logits = builder.node("MatMul", head.output, [value, matrix])
    if head.has_bias:
        bias = builder.weight(head.bias or f"{head.output}.bias", labels)
        logits = builder.node("Add", f"{head.output}.biased", [logits, bias])
    return _mean(builder, logits, read.mask) if head.reads == "late" else logits


def _difference(builder: Builder, table: str, shape: tuple[int, int], true: int, false: int | None) -> ir.Value:
    """The row of a word, less that of another one, as a column."""
    builder.weights.check(table, shape)

    def read() -> np.ndarray:
        rows = builder.weights.read(table, shape)
        row = rows[true] if false is None else rows[true] - rows[false]
        return np.ascontiguousarray(row[:, None])

    return builder.lazy(f"{table}.score", read, (shape[1], 1))


def _splade(builder: Builder, logits: ir.Value, mask: ir.Value, strategy: str, activation: str) -> ir.Value:
    """The weight of each word in a text, (B, labels): the maximum or sum over tokens of ``log(1 + logits)``."""

    op, steps = builder.under("splade"), 2 if activation == "log1p_relu" else 1

    def log1p(value: ir.Value) -> ir.Value:
        for _ in range(steps):
            value = op("Log", op("Add", value, op.constant("one", np.array(1, np.float32))))
        return value

    column = op("Unsqueeze", op("Cast", mask, to=int(ir.DataType.FLOAT)), [2])
    positive = op("Relu", logits)
    if strategy == "max":  # the logarithm grows with its argument: it is taken of the maximum alone
        return log1p(op("ReduceMax", op("Mul", positive, column), axes=[1], keepdims=0))
    return op("ReduceSum", op("Mul", log1p(positive), column), [1], keepdims=0)


def _value(builder: Builder, head: Head, read: Read) -> ir.Value:
    """What the first layer reads."""
    if head.reads == "pooler":
        assert read.pooled is not None, "this head reads the pooler"
        return read.pooled
    if head.reads == "first":
        return builder.under(head.dense or head.output)("Gather", read.hidden, 0, axis=1)
    if head.reads == "mean":
        return _mean(builder, read.hidden, read.mask)
    op = builder.under("last")
    if head.reads == "end":
        return _last(op, read.hidden, op("Cast", read.mask, to=int(ir.DataType.BOOL)))
    if head.reads == "last":
        assert read.padding_id is not None, "this head looks for padding"
        return _last(op, read.hidden, op("Not", op("Equal", read.ids, read.padding_id)))
    return read.hidden


def _mean(builder: Builder, value: ir.Value, mask: ir.Value) -> ir.Value:
    """The mean over the tokens in the mask, (B, width)."""
    op = builder.under("mean")
    real = op("Cast", mask, to=int(ir.DataType.FLOAT))
    total = op("ReduceSum", op("Mul", value, op("Unsqueeze", real, [2])), [1], keepdims=0)
    return op("Div", total, op("ReduceSum", real, [1], keepdims=1))


def _last(op: Nodes, hidden: ir.Value, real: ir.Value) -> ir.Value:
    """The hidden state of the last real token; of the first, if none is."""
    ones = op("Cast", real, to=int(ir.DataType.INT64))
    position = op("ArgMax", op("Mul", op("CumSum", ones, 1), ones), axis=1, keepdims=1)
    position.shape, position.type = ir.Shape(("batch", 1)), ir.TensorType(ir.DataType.INT64)
    return op("GatherND", hidden, position, batch_dims=1)
