"""Layer normalization over the sum of a dense layer, its bias, and a skip connection.

Matched, with operands in any order: ``LayerNormalization(dense(x) + bias + skip)`` over the last axis, with a
one-dimensional weight and bias. A missing bias, of the normalization or the dense layer, becomes zeros.

Rejected: other axes. A layer normalization of any other value is ignored, and so is one of a sum that other nodes use
(in models that normalize before the layers): there is nothing to gain.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from isorun.graph.analysis.evaluate import sizes
from isorun.graph.io.nodes import needed
from isorun.graph.matching import subgraph
from isorun.graph.matching.report import CannotFuse, FusionReport

KIND = "SkipLayerNormalization"


def fuse(model: ir.Model, report: FusionReport) -> None:
    """Fuse every layer normalization over a skip connection of a normalized model, in place."""
    for node in list(model.graph):
        if node.op_type != "LayerNormalization" or node.domain != "" or node.inputs[0] is None:
            continue
        total = node.inputs[0].producer()
        if total is None or total.op_type != "Add" or total.domain != "":
            continue
        sides = _sides(total)
        if sides is None:
            continue
        if subgraph.is_used_outside(total.outputs[0], {node}):
            continue
        with report.candidate(KIND, node.name):
            gamma, beta, epsilon = norm(node)
            product, bias, skip = sides
            if beta is None or bias is None:
                zeros = subgraph.Before(node).constant("zeros", np.zeros(sizes(gamma), subgraph.dtype(gamma).numpy()))
                beta, bias = beta or zeros, bias or zeros
            subgraph.put(KIND, [product, skip, gamma, beta, bias], {"epsilon": epsilon}, node.outputs[0])


def norm(node: ir.Node) -> tuple[ir.Value, ir.Value | None, float]:
    """Weight, bias and epsilon of a ``LayerNormalization`` over the last axis.

    Raises:
        CannotFuse: it normalizes other axes, its mean or deviation is used, or its weights are not constants.
    """
    axis, rank = node.attributes.get_int("axis", -1), subgraph.rank(needed(node.inputs[0])) or 0
    if axis not in (-1, rank - 1):
        raise CannotFuse(f"it normalizes the axes from {axis} on; only the last axis is supported")
    if any(value.uses() or value.is_graph_output() for value in node.outputs[1:]):
        raise CannotFuse("another node uses its mean or deviation")
    gamma = node.inputs[1]
    beta = node.inputs[2] if len(node.inputs) > 2 else None
    if gamma is None or not subgraph.is_vector(gamma) or (beta is not None and not subgraph.is_vector(beta)):
        raise CannotFuse("its weight and bias must be one-dimensional constants")
    if sizes(gamma) == (1,) or (beta is not None and sizes(beta) != sizes(gamma)):
        raise CannotFuse("its weight and bias must have a number for each column")
    return gamma, beta, node.attributes.get_float("epsilon", 1e-5)


def _sides(total: ir.Node) -> tuple[ir.Value, ir.Value | None, ir.Value] | None:
    """Product, bias and skip of a sum; ``None`` if neither operand is a dense layer.

    If both are, the skip is the operand that other nodes use too: the input of the layers before the sum.
    """
    candidates = []
    for operand, skip in (total.inputs, total.inputs[::-1]):
        layer = subgraph.projection(operand)
        if layer is not None and operand is not None and skip is not None:
            candidates.append((subgraph.is_used_outside(operand, {total}), layer.product, layer.bias, skip))
    return min(candidates, key=lambda candidate: candidate[0])[1:] if candidates else None
