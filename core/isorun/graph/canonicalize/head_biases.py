"""Biases that are added to the heads of queries or values (DeBERTa, Keras) go to the dense layer before them.

The nodes between only move numbers. Which column of the layer is where is read off by evaluating them on the columns'
numbers.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from isorun.graph.analysis.evaluate import CannotEvaluate, array, is_constant, sizes
from isorun.graph.io.nodes import needed
from isorun.graph.matching import subgraph
from isorun.graph.matching.probes import Probes
from isorun.graph.matching.subgraph import DenseLayer

_MOVES = frozenset(("Reshape", "Split", "Squeeze", "Transpose", "Unsqueeze"))


def move(graph: ir.Graph) -> None:
    """Move the biases, in place. The graph's results are unchanged."""
    probes = Probes(graph)
    for node in list(graph):
        if node.domain != "" or node.op_type != "Add":
            continue
        for value, bias in (node.inputs, node.inputs[::-1]):
            if value is None or bias is None or not is_constant(bias) or len(sizes(bias)) < 2:
                continue
            layer = _layer(value)
            columns = None if layer is None else _by_column(layer, value, array(bias), probes)
            if layer is not None and columns is not None:
                subgraph.replace_node(node, value)
                _add(layer, columns)
                break


def _layer(value: ir.Value) -> DenseLayer | None:
    """The dense layer whose output a value has some columns of, if nothing else reads these."""
    while len(value.consumers()) == 1 and not value.is_graph_output():
        if (layer := subgraph.dense(value)) is not None:
            return layer
        node = value.producer()
        if node is None or node.domain != "" or node.op_type not in _MOVES or node.inputs[0] is None:
            return None
        value = node.inputs[0]
    return None


def _by_column(layer: DenseLayer, value: ir.Value, bias: np.ndarray, probes: Probes) -> np.ndarray | None:
    """What is added to each column; ``None`` if it differs between tokens."""
    inputs, outputs = sizes(layer.weight)
    length = probes.lengths[0]
    rows = (probes.rows * length,) if subgraph.rank(layer.output) == 2 else (probes.rows, length)
    numbers = np.broadcast_to(np.arange(outputs, dtype=np.float32), (*rows, outputs))
    samples = {layer.input: np.zeros((*rows, inputs), np.float32), layer.output: np.ascontiguousarray(numbers)}
    try:
        places = probes.evaluator({**probes.feeds(length), **samples})(value).astype(np.int64)
    except CannotEvaluate:
        return None
    aligned = (1,) * (places.ndim - bias.ndim) + bias.shape
    if len(aligned) > places.ndim or any(
        size not in (1, whole) for size, whole in zip(aligned, places.shape, strict=True)
    ):
        return None
    added, columns = np.broadcast_to(bias, places.shape), np.zeros(outputs, bias.dtype)
    columns[places] = added
    return columns if (columns[places] == added).all() else None


def _add(layer: DenseLayer, columns: np.ndarray) -> None:
    """Add to the bias of a layer."""
    output, product, producer = layer.output, layer.product, needed(layer.output.producer())
    total = columns if layer.bias is None else array(layer.bias) + columns
    bias = subgraph.constant(subgraph.graph_of(producer), f"{layer.weight.name}.bias", ir.tensor(total))
    add = ir.node("Add", [product, bias])
    producer.append(add)
    subgraph.replace(output, add.outputs[0])
    add.replace_input_with(0, product)
