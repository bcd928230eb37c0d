"""Layer normalization in parts, as exporters write it before opset 17, recognised by what it computes."""

from __future__ import annotations

import logging

import numpy as np
import onnx_ir as ir

from isorun.graph.analysis.evaluate import CannotEvaluate, Evaluator, array, is_constant, sizes
from isorun.graph.matching import subgraph

_logger = logging.getLogger(__name__)

_MEANS = ("ReduceMean", "GlobalAveragePool")  # the latter is what tf2onnx makes of the mean over the last of three axes
_OPERATORS = frozenset((*_MEANS, "Sub", "Pow", "Mul", "Add", "Sqrt", "Div", "Reciprocal", "Neg", "Cast"))
_NODES = 14


def fuse(model: ir.Model) -> None:
    """Make a ``LayerNormalization`` of every one that is there in parts, in place; each takes what is around it."""
    for node in list(model.graph):
        if node.domain == "" and node.op_type in _MEANS:
            _put(model, node)
    for node in model.graph:
        if node.domain == "" and node.op_type == "LayerNormalization":
            _narrow(model.graph, node)


def _put(model: ir.Model, mean: ir.Node) -> None:
    """Put a ``LayerNormalization`` over the last axis in the place of the sub-graph that begins with a mean."""
    entry = mean.inputs[0]
    if entry is None or is_constant(entry) or not mean.outputs[0].uses():
        return
    best = None
    cast = entry.producer()
    wider = cast is not None and cast.op_type == "Cast" and cast.inputs[0] is not None
    for begin in (cast.inputs[0], entry) if wider and cast is not None else (entry,):
        assert begin is not None
        for value, nodes in subgraph.exits(begin, mean, _OPERATORS, _NODES):
            fitted = None if value.dtype != begin.dtype else _fit(model, begin, value, nodes)
            if fitted is not None:
                best = (begin, value, fitted)
        if best is not None:
            break
    if best is None:
        return
    begin, value, (gamma, beta, epsilon) = best
    before = value.producer()
    assert before is not None
    node = ir.node(
        "LayerNormalization", [begin, gamma, beta], {"axis": -1, "epsilon": epsilon}, name=f"{mean.name}.normalized"
    )
    node.outputs[0].type, node.outputs[0].shape = value.type, value.shape
    model.graph.insert_before(before, node)
    subgraph.replace(value, node.outputs[0])
    model.graph.opset_imports[""] = max(model.graph.opset_imports[""], 17)


def _narrow(graph: ir.Graph, node: ir.Node) -> None:
    """A normalization in fp32 between casts from and to 16 bits takes and gives those: inside it is fp32 anyway."""
    entry, output = node.inputs[0], node.outputs[0]
    if entry is None or not all(value is None or is_constant(value) for value in node.inputs[1:]):
        return
    source, result = subgraph.outside_casts(entry, output)
    if source is entry or source.dtype is None:
        return
    node.replace_input_with(0, source)
    for index, value in enumerate(node.inputs[1:], start=1):
        if value is not None:
            narrow = ir.tensor(array(value).astype(source.dtype.numpy()))
            node.replace_input_with(index, subgraph.constant(graph, f"{value.name}.narrow", narrow))
    output.dtype = source.dtype
    subgraph.replace(result, output)


def _fit(
    model: ir.Model, entry: ir.Value, value: ir.Value, nodes: set[ir.Node]
) -> tuple[ir.Value, ir.Value, float] | None:
    """Weight, bias and epsilon with which ``value`` is the layer normalization of ``entry``, if there are any."""
    constants = {each for node in nodes for each in node.inputs if each is not None and is_constant(each)}
    vectors = [
        each for each in constants if subgraph.is_vector(each) and sizes(each) != (1,) and each.dtype == value.dtype
    ]
    epsilons = [number for each in constants if (number := subgraph.scalar(each)) is not None and 0 < number < 0.01]
    if not vectors:
        return None
    (width,) = sizes(vectors[0])
    random = np.random.default_rng(0)
    sample = random.normal(size=(2, 3, width)).astype(np.float32)
    sample[1] *= 0.01  # where epsilon shows
    try:
        answer = Evaluator(model.graph.opset_imports[""], {entry: sample})(value)
    except CannotEvaluate as why:
        _logger.debug("no layer normalization: %s", why)
        return None
    if answer.shape != sample.shape:
        return None
    centered = sample - sample.mean(-1, keepdims=True)
    variance = (centered**2).mean(-1, keepdims=True)
    for epsilon in epsilons or [0.0]:
        unit = centered / np.sqrt(variance + epsilon)
        for gamma in vectors:
            for beta in vectors:
                if np.allclose(unit * array(gamma) + array(beta), answer, rtol=1e-4, atol=1e-4):
                    return gamma, beta, epsilon
    return None
