"""Rows of the tables of known faults of images that several runtimes share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from isorun.plugin import Fault
from isorun_backends.nodes import Nodes, Rows, attribute_of, dtype_of, rewrite

if TYPE_CHECKING:
    import onnx_ir as ir

    from isorun_backends.nodes import Condition


def local_response(fault: Rows, condition: str, result: str, applies: Condition) -> Fault:
    """A local response normalization of each channel and the next, with a bias."""
    squares = np.array([1 + 4, 4 + 9, 9], np.float32)
    return fault(
        *("LRN", condition, result),
        "g (float[a, b, c, d] x) => (float[e, f, g, h] y) "
        "{ y = LRN <size = 2, alpha = 2.0, beta = 1.0, bias = 2.0> (x) }",
        applies=applies,
        rewrite=_by_pool,
        feeds={"x": np.array([1, 2, 3], np.float32).reshape(1, 3, 1, 1)},
        expected=[(np.array([1, 2, 3], np.float32) / (2 + squares)).reshape(1, 3, 1, 1)],
    )


@rewrite
def _by_pool(op: Nodes, node: ir.Node) -> ir.Value:
    """With the means of squares over channels, where those that do not exist count as zeros."""
    (x,), size = node.inputs, attribute_of(node, "size")
    assert x is not None
    alpha, beta, bias = (
        op.constant(attribute_of(node, name, default), dtype_of(x, np.float32))
        for name, default in (("alpha", 1e-4), ("beta", 0.75), ("bias", 1.0))
    )
    channels = op("Unsqueeze", op("Reshape", op("Mul", x, x), op.constant([0, 0, -1])), op.constant([1]))
    before = (size - 1) // 2
    pads = [before, 0, size - 1 - before, 0]
    means = op("AveragePool", channels, kernel_shape=[size, 1], pads=pads, count_include_pad=1)
    scale = op("Mul", op("Reshape", means, op("Shape", x)), alpha)
    return op("Div", x, op("Pow", op("Add", scale, bias), beta))
