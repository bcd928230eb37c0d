"""Heads on an encoder: classes of texts and tokens, spans of answers, words behind masks."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from isorun.graph.builders import activations
from isorun.graph.builders.architecture import Head
from isorun.graph.builders.builder import Builder
from isorun.graph.builders.encoder_config import EncoderConfig
from isorun.graph.io.nodes import needed
from isorun.graph.ops.adding import Nodes
from isorun.graph.tasks import ANSWERS, SEQUENCE

SPARSE = "sparse_embedding"
"""The output with the weights of words in a text."""


@dataclass(frozen=True)
class Read:
    """What an encoder gives to a head.

    Attributes:
        config: of the encoder.
        ids, mask: the graph's inputs.
        hidden: the hidden states, (B, S, width).
        pooled: the pooler's output, (B, width); ``None`` if there is none.
    """

    config: EncoderConfig
    ids: ir.Value
    mask: ir.Value
    hidden: ir.Value
    pooled: ir.Value | None


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
    value, width = _value(builder, head, read), read.config.hidden_size
    if head.dense is not None:
        inner = head.inner or width
        bias = builder.weight(f"{head.dense}.bias", inner) if head.dense_bias else None
        product = builder.dense(head.dense, value, width, inner)
        value = activations.activated(builder, head.activation, f"{head.dense}.activated", product, inner, bias)
        width = inner
        if head.norm is not None:
            weights = [builder.weight(f"{head.norm}.weight", width)]
            weights += [builder.weight(f"{head.norm}.bias", width)] if head.norm_bias else []
            epsilon = read.config.layer_norm_eps
            value = builder.under(head.norm)("LayerNormalization", value, *weights, axis=-1, epsilon=epsilon)
    table = f"{head.tied or head.output}.weight"
    if head.words is None:
        matrix = builder.joined(f"{head.output}.weight", {table: (labels, width)})
    else:
        matrix = _difference(builder, table, (read.config.vocab_size, width), *head.words)
    logits = builder.node("MatMul", head.output, [value, matrix])
    if head.has_bias:
        bias = builder.weight(head.bias or f"{head.output}.bias", labels)
        logits = builder.node("Add", f"{head.output}.biased", [logits, bias])
    return _mean(builder, logits, read.mask) if head.reads == "late" else logits


def _difference(builder: Builder, table: str, shape: tuple[int, int], true: int, false: int | None) -> ir.Value:
    """The row of a word, less that of another one, as a column."""

    def column(rows: np.ndarray) -> np.ndarray:
        row = rows[true] if false is None else rows[true] - rows[false]
        return np.ascontiguousarray(row[:, None])

    return builder.computed(f"{table}.score", {table: shape}, column, (shape[1], 1))


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
        return needed(read.pooled)
    if head.reads == "first":
        return builder.under(head.dense or head.output)("Gather", read.hidden, 0, axis=1)
    if head.reads == "mean":
        return _mean(builder, read.hidden, read.mask)
    op = builder.under("last")
    if head.reads == "end":
        return _last(op, read.hidden, op("Cast", read.mask, to=int(ir.DataType.BOOL)))
    if head.reads == "last":
        return _last(op, read.hidden, op("Not", op("Equal", read.ids, needed(read.config.pad_token_id))))
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
