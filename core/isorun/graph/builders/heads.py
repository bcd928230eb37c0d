"""Heads on an encoder: classes of texts and tokens, spans of answers, words behind masks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from isorun.graph.builders import activations
from isorun.graph.builders.builder import Builder
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
    last = builder.constant(f"{head.output}.last", np.array([-1]))
    ends = zip(("start_logits", "end_logits"), builder.split(f"{head.output}.split", logits, 2), strict=True)
    return [
        builder.output(label, builder.node("Squeeze", f"{head.output}.{label}", [end, last]), "sequence")
        for label, end in ends
    ]


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

    def log1p(value: ir.Value, name: str) -> ir.Value:
        for number in range(2 if activation == "log1p_relu" else 1):
            one = builder.constant("splade.one", np.array(1, np.float32))
            value = builder.node("Log", f"{name}.{number}", [builder.node("Add", f"{name}.{number}.sum", [value, one])])
        return value

    last, axis = (builder.constant(f"splade.{name}", np.array([at])) for name, at in (("last", 2), ("axis", 1)))
    real = builder.node("Cast", "splade.real", [mask], to=int(ir.DataType.FLOAT))
    column = builder.node("Unsqueeze", "splade.column", [real, last])
    positive = builder.node("Relu", "splade.positive", [logits])
    if strategy == "max":  # the logarithm grows with its argument: it is taken of the maximum alone
        kept = builder.node("Mul", "splade.kept", [positive, column])
        return log1p(builder.node("ReduceMax", "splade.max", [kept], axes=[1], keepdims=0), "splade.log")
    kept = builder.node("Mul", "splade.kept", [log1p(positive, "splade.log"), column])
    return builder.node("ReduceSum", "splade.sum", [kept, axis], keepdims=0)


def _value(builder: Builder, head: Head, read: Read) -> ir.Value:
    """What the first layer reads."""
    if head.reads == "pooler":
        assert read.pooled is not None, "this head reads the pooler"
        return read.pooled
    if head.reads == "first":
        zero = builder.constant("first.position", np.array(0))
        return builder.node("Gather", f"{head.dense or head.output}.first", [read.hidden, zero], axis=1)
    if head.reads == "mean":
        return _mean(builder, read.hidden, read.mask)
    if head.reads == "end":
        return _last(builder, read.hidden, builder.node("Cast", "last.real", [read.mask], to=int(ir.DataType.BOOL)))
    if head.reads == "last":
        assert read.padding_id is not None, "this head looks for padding"
        padding = builder.constant("last.padding", np.array(read.padding_id))
        is_padding = builder.node("Equal", "last.is_padding", [read.ids, padding])
        return _last(builder, read.hidden, builder.node("Not", "last.is_real", [is_padding]))
    return read.hidden


def _mean(builder: Builder, value: ir.Value, mask: ir.Value) -> ir.Value:
    """The mean over the tokens in the mask, (B, width)."""
    axis = builder.constant("mean.axis", np.array([1]))
    last = builder.constant("mean.last", np.array([2]))
    real = builder.node("Cast", "mean.real", [mask], to=int(ir.DataType.FLOAT))
    column = builder.node("Unsqueeze", "mean.column", [real, last])
    kept = builder.node("Mul", "mean.kept", [value, column])
    total = builder.node("ReduceSum", "mean.total", [kept, axis], keepdims=0)
    count = builder.node("ReduceSum", "mean.count", [real, axis], keepdims=1)
    return builder.node("Div", "mean", [total, count])


def _last(builder: Builder, hidden: ir.Value, real: ir.Value) -> ir.Value:
    """The hidden state of the last real token; of the first, if none is."""
    ones = builder.node("Cast", "last.ones", [real], to=int(ir.DataType.INT64))
    counted = builder.node("CumSum", "last.counted", [ones, builder.constant("last.axis", np.array(1))])
    numbered = builder.node("Mul", "last.numbered", [counted, ones])
    position = builder.node("ArgMax", "last.position", [numbered], axis=1, keepdims=1)
    position.shape, position.type = ir.Shape(("batch", 1)), ir.TensorType(ir.DataType.INT64)
    return builder.node("GatherND", "last.hidden", [hidden, position], batch_dims=1)
