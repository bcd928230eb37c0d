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
    op = builder.under("mean")
    words = op("Gather", builder.weight(TABLE, *shape), inputs["input_ids"], axis=0)
    real = op("Cast", inputs["attention_mask"], to=int(ir.DataType.FLOAT))
    total = op("ReduceSum", op("Mul", words, op("Unsqueeze", real, [-1])), [1], keepdims=0)
    count = op("ReduceSum", real, [1], keepdims=1)
    mean = op("Div", total, op("Max", count, op.constant("minimum", np.array(1, np.float32))))
    return builder.graph("words", inputs, [builder.output("sentence_embedding", mean, shape[1])])
