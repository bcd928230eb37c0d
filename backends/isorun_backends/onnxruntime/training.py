"""What ONNX Runtime's CPU provider computes wrongly of batch normalizations in training mode: rows of the table in
``faults``.

It writes the updated mean and variance over those that it reads, weights or feeds of the caller, unless they are
outputs of the graph.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from isorun_backends.nodes import Nodes, attribute_of
from isorun_backends.onnxruntime.row import fault_in_1_32

if TYPE_CHECKING:
    import onnx_ir as ir

_MODEL = (
    "g (float[n, 3] x) => (float[n, 3] y{outputs}) <float[3] a = {{1, 2, 3}}, float[3] m = {{1, 1, 1}}, "
    "float[3] v = {{1, 1, 1}}> {{ y, p, q = BatchNormalization <training_mode = 1> (x, a, m, m, v){nodes} }}"
)
_FEEDS = {"x": np.array([[1, 2, 3], [3, 5, 9]], np.float32)}


def _is_read(value: ir.Value) -> bool:
    return value.is_graph_output() or bool(value.uses())


def updates_nothing(node: ir.Node, _: int) -> bool:
    """Whether nothing reads the updated mean and variance."""
    return bool(attribute_of(node, "training_mode", 0)) and not any(map(_is_read, node.outputs[1:]))


def updates_weights(node: ir.Node, _: int) -> bool:
    """Whether something reads the updated mean or variance, and not both are outputs of the graph."""
    updated = node.outputs[1:]
    return bool(attribute_of(node, "training_mode", 0)) and (
        any(map(_is_read, updated)) and not all(value.is_graph_output() for value in updated)
    )


def normalize_as_one_instance(op: Nodes, node: ir.Node) -> ir.Value:
    """The normalization of an image with all elements of the batch in each channel."""
    x, scale, bias = node.inputs[:3]
    epsilon = attribute_of(node, "epsilon", 1e-5)
    by_channel = op("Transpose", op("Reshape", x, op.constant([0, 0, -1])), perm=[1, 0, 2])
    image = op("Unsqueeze", op("Flatten", by_channel, axis=1), op.constant([0]))
    normalized = op("InstanceNormalization", image, scale, bias, epsilon=epsilon)
    by_row = op("Transpose", op("Reshape", normalized, op("Shape", by_channel)), perm=[1, 0, 2])
    shape = op("Shape", x)
    normalized = op("Reshape", by_row, shape)
    for mean_or_variance in node.inputs[3 : 2 + len(node.outputs)]:  # nothing reads what it becomes
        op("Identity", mean_or_variance)
    return normalized


ROWS = (
    fault_in_1_32(
        "BatchNormalization | `training_mode` = 1, where nothing reads the updated mean and variance | "
        "other numbers at every run: it updates the weights, or the caller's feeds, with which it computes",
        _MODEL.format(outputs="", nodes=""),
        applies=updates_nothing,
        rewrite=normalize_as_one_instance,
        feeds=_FEEDS,
    ),
    fault_in_1_32(
        "BatchNormalization | `training_mode` = 1, where the updated mean or variance is read, unless both are "
        "outputs of the model | the same",
        _MODEL.format(outputs=", float[3] s", nodes=" s = Neg (p)"),
        applies=updates_weights,
        feeds=_FEEDS,
    ),
)
