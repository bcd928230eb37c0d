"""Pointwise convolutions over (batch, width, sequence), as in SqueezeBERT, are dense layers.

Groups become a dense layer each, over its part of the width: a matrix with zeros outside its blocks would multiply as
many times as much. The transpositions around them move to where they cancel out (``layouts``).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import onnx_ir as ir

from isorun.graph.analysis.evaluate import array, is_constant, sizes
from isorun.graph.io.nodes import needed
from isorun.graph.matching import subgraph

_MAX_GROUPS = 16
_WIDTH_LAST = [0, 2, 1]


def rewrite(graph: ir.Graph) -> None:
    """Replace the convolutions, in place. The graph's results are unchanged."""
    for node in list(graph):
        if node.domain == "" and node.op_type == "Conv" and _is_pointwise(node):
            _replace(node)


def _is_pointwise(node: ir.Node) -> bool:
    weight, *bias = node.inputs[1:]
    if node.inputs[0] is None or not all(map(is_constant, bias)):
        return False
    strides, pads = (node.attributes.get_ints(name, ()) for name in ("strides", "pads"))
    groups = node.attributes.get_int("group", 1)
    is_single = is_constant(weight) and len(sizes(weight)) == 3 and sizes(weight)[2] == 1
    return is_single and groups <= _MAX_GROUPS and all(stride == 1 for stride in strides) and not any(pads)


def _replace(node: ir.Node) -> None:
    value, weight, *bias = needed(node.inputs[0]), needed(node.inputs[1]), *node.inputs[2:]
    op, groups = subgraph.Before(node), node.attributes.get_int("group", 1)
    dtype, shape = subgraph.dtype(weight), value.shape
    batch, length = (None, None) if shape is None else (shape[0], shape[2])

    def typed(result: ir.Value, width: int) -> ir.Value:
        result.type, result.shape = value.type, ir.Shape([batch, length, width])
        return result

    outputs, inputs = sizes(weight)[0] // groups, sizes(weight)[1]
    hidden = typed(op("Transpose", value, perm=_WIDTH_LAST), groups * inputs)
    parts: Sequence[ir.Value] = [hidden] if groups == 1 else _split(hidden, groups, op)
    products: list[ir.Value] = []
    for part, (begin, end) in zip(parts, pairwise(range(0, (groups + 1) * outputs, outputs)), strict=True):

        def matrix(begin: int = begin, end: int = end) -> np.ndarray:
            return array(weight)[begin:end, :, 0].T

        name = f"{weight.name}.matrix" if groups == 1 else f"{weight.name}.matrix.{len(products)}"
        columns = subgraph.constant(op.graph, name, subgraph.lazy(matrix, dtype, (inputs, outputs)))
        products.append(typed(op("MatMul", typed(part, inputs), columns), outputs))
    result = products[0] if groups == 1 else op("Concat", *products, axis=-1)
    if bias and bias[0] is not None:
        result = op("Add", typed(result, groups * outputs), bias[0])
    subgraph.replace_node(node, op("Transpose", typed(result, groups * outputs), perm=_WIDTH_LAST))


def _split(value: ir.Value, count: int, op: subgraph.Before) -> Sequence[ir.Value]:
    if op.graph.opset_imports[""] < 18:
        return op.several(count, "Split", value, axis=-1)
    return op.several(count, "Split", value, axis=-1, num_outputs=count)
