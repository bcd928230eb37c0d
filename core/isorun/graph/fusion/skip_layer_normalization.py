"""Layer normalization over the sum of a dense layer, its bias, and what skipped it.

Matched, whichever way round the sums are written: ``LayerNormalization(dense(x) + bias + skip)`` over the last
axis, with a weight and a bias (zeros where it has none) of one dimension. A dense layer without a bias gets one of
zeros.

Refused: a sum that something else uses too (as where normalization comes before the layers), another axis. A
layer normalization over anything but such a sum is none of this fusion's business.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from isorun.graph.analysis.evaluate import sizes
from isorun.graph.matching import subgraph
from isorun.graph.matching.report import FusionReport, Refused

KIND = "SkipLayerNormalization"


def fuse(model: ir.Model, report: FusionReport) -> None:
    """Fuse every layer normalization over a skip connection of a normalized model, in place."""
    zeros: dict[tuple[int, ir.DataType], ir.Value] = {}
    for node in list(model.graph):
        if node.op_type != "LayerNormalization" or node.domain != "" or node.inputs[0] is None:
            continue
        total = node.inputs[0].producer()
        if total is None or total.op_type != "Add" or total.domain != "":
            continue
        sides = _sides(total)
        if sides is None:
            continue
        try:
            gamma, beta, epsilon = norm(node)
        except Refused as why:
            report.refuse(KIND, node.name, str(why))
            continue
        if subgraph.is_used_outside(total.outputs[0], {node}):
            report.refuse(KIND, node.name, "something else uses the sum that it normalizes")
            continue
        product, bias, skip = sides
        if beta is None or bias is None:
            (size,), dtype = sizes(gamma), subgraph.dtype(gamma)
            if (size, dtype) not in zeros:
                none = ir.tensor(np.zeros(size, dtype.numpy()))
                zeros[size, dtype] = subgraph.constant(model.graph, f"isorun.zeros.{size}", none)
            beta, bias = beta or zeros[size, dtype], bias or zeros[size, dtype]
        try:
            subgraph.put(KIND, [product, skip, gamma, beta, bias], {"epsilon": epsilon}, node.outputs[0])
        except Refused as why:
            report.refuse(KIND, node.name, str(why))
        else:
            report.accept(KIND)


def norm(node: ir.Node) -> tuple[ir.Value, ir.Value | None, float]:
    """Weight, bias and epsilon of a ``LayerNormalization`` over the last axis.

    Raises:
        Refused: it is over other axes, gives more than its value, or its weights are no constants.
    """
    axis = node.attributes["axis"].as_int() if "axis" in node.attributes else -1
    value = node.inputs[0]
    rank = None if value is None or value.shape is None else len(value.shape)
    if axis != -1 and (rank is None or axis != rank - 1):
        raise Refused(f"it normalizes over the axes from {axis} on, not over the last alone")
    if any(each.uses() or each.is_graph_output() for each in node.outputs[1:]):
        raise Refused("something uses its mean or its deviation")
    gamma = node.inputs[1]
    beta = node.inputs[2] if len(node.inputs) > 2 else None
    if gamma is None or not subgraph.is_vector(gamma) or (beta is not None and not subgraph.is_vector(beta)):
        raise Refused("its weight and bias are no constants of one dimension")
    epsilon = node.attributes["epsilon"].as_float() if "epsilon" in node.attributes else 1e-5
    return gamma, beta, epsilon


def _sides(total: ir.Node) -> tuple[ir.Value, ir.Value | None, ir.Value] | None:
    """Product, bias and skip of a sum; ``None`` where neither side is a dense layer.

    Where both are, the skip is the side that something else takes too: what the layers before the sum begin with.
    """
    found = []
    for one, other in (total.inputs, total.inputs[::-1]):
        layer = subgraph.dense(one)
        if layer is None or one is None or other is None:
            continue
        node = one.producer()
        assert node is not None
        product = one if layer.bias is None else next(each for each in node.inputs if each is not layer.bias)
        assert product is not None
        found.append((subgraph.is_used_outside(one, {total}), product, layer.bias, other))
    return min(found, key=lambda each: each[0])[1:] if found else None
