"""Static embeddings: the mean of the vectors of a text's tokens."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from isorun.graph.builders.builder import Builder, Weights

TABLE = "embedding.weight"


def mean_of_words(weights: Weights, shape: tuple[int, int]) -> ir.Model:
    """The graph of a table of words: their mean over the tokens in the mask, zeros for a row without any.

    Args:
        weights: with the table, :data:`TABLE`.
        shape: its rows and columns.

    Returns:
        A model with the inputs ``input_ids`` and ``attention_mask`` and the output ``sentence_embedding``.
    """
    builder = Builder(weights)
    inputs = {label: builder.input(label) for label in ("input_ids", "attention_mask")}
    words = builder.node("Gather", "words", [builder.weight(TABLE, *shape), inputs["input_ids"]], axis=0)
    real = builder.node("Cast", "real", [inputs["attention_mask"]], to=int(ir.DataType.FLOAT))
    column = builder.node("Unsqueeze", "column", [real, builder.constant("last", np.array([-1]))])
    axis = builder.constant("axis", np.array([1]))
    kept = builder.node("Mul", "kept", [words, column])
    total = builder.node("ReduceSum", "total", [kept, axis], keepdims=0)
    count = builder.node("ReduceSum", "count", [real, axis], keepdims=1)
    minimum = builder.constant("minimum", np.array(1, np.float32))
    mean = builder.node("Div", "mean", [total, builder.node("Max", "divisor", [count, minimum])])
    return builder.graph("words", inputs, [builder.output("sentence_embedding", mean, shape[1])])
