"""Fusion of decomposed layer normalization, as exporters write it before opset 17, recognized numerically."""

from __future__ import annotations

import logging

import numpy as np
import onnx_ir as ir

from isorun.graph.analysis.evaluate import CannotEvaluate, Evaluator, array, is_constant, sizes
from isorun.graph.matching import subgraph

_logger = logging.getLogger(__name__)

_MEANS = ("ReduceMean", "GlobalAveragePool")  # tf2onnx writes the latter for the mean over the last of three axes
_OPERATORS = frozenset((*_MEANS, "Sub", "Pow", "Mul", "Add", "Sqrt", "Div", "Reciprocal", "Neg", "Cast"))
_MAX_NODES = 14


def fuse(model: ir.Model) -> None:
    """Replace every decomposed layer normalization with ``LayerNormalization``, in place."""
    for node in list(model.graph):
        if node.domain == "" and node.op_type in _MEANS:
            _fuse(model, node)
    for node in model.graph:
        if node.domain == "" and node.op_type == "LayerNormalization":
            _remove_casts(model.graph, node)


def _fuse(model: ir.Model, mean: ir.Node) -> None:
    """Replace the subgraph that begins with a mean by ``LayerNormalization`` over the last axis."""
    entry = mean.inputs[0]
    if entry is None or is_constant(entry) or not mean.outputs[0].uses():
        return
    match = None
    cast = entry.producer()
    uncast = cast.inputs[0] if cast is not None and cast.op_type == "Cast" else None
    for source in (entry,) if uncast is None else (uncast, entry):
        for value, nodes in subgraph.exits(source, mean, _OPERATORS, _MAX_NODES):
            parameters = None if value.dtype != source.dtype else _parameters(model, source, value, nodes)
            if parameters is not None:
                match = (source, value, parameters)
        if match is not None:
            break
    if match is None:
        return
    source, value, (gamma, beta, epsilon) = match
    before = value.producer()
    assert before is not None
    node = ir.node(
        "LayerNormalization", [source, gamma, beta], {"axis": -1, "epsilon": epsilon}, name=f"{mean.name}.normalized"
    )
    node.outputs[0].type, node.outputs[0].shape = value.type, value.shape
    model.graph.insert_before(before, node)
    subgraph.replace(value, node.outputs[0])
    model.graph.opset_imports[""] = max(model.graph.opset_imports[""], 17)


def _remove_casts(graph: ir.Graph, node: ir.Node) -> None:
    """Remove the casts around a normalization in fp32 of 16-bit values: it computes in fp32 anyway."""
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


def _parameters(
    model: ir.Model, entry: ir.Value, value: ir.Value, nodes: set[ir.Node]
) -> tuple[ir.Value, ir.Value, float] | None:
    """Weight, bias and epsilon if ``value`` is the layer normalization of ``entry``; ``None`` if it is not."""
    constants = {operand for node in nodes for operand in node.inputs if operand is not None and is_constant(operand)}
    vectors = [
        constant
        for constant in constants
        if subgraph.is_vector(constant) and sizes(constant) != (1,) and constant.dtype == value.dtype
    ]
    scalars = (subgraph.scalar(constant) for constant in constants)
    epsilons = [number for number in scalars if number is not None and 0 < number < 0.01]
    if not vectors:
        return None
    (width,) = sizes(vectors[0])
    random = np.random.default_rng(0)
    sample = random.normal(size=(2, 3, width)).astype(np.float32)
    sample[1] *= 0.01  # small enough for epsilon to matter
    try:
        result = Evaluator(model.graph.opset_imports[""], {entry: sample})(value)
    except CannotEvaluate as why:
        _logger.debug("not a layer normalization: %s", why)
        return None
    if result.shape != sample.shape:
        return None
    centered = sample - sample.mean(-1, keepdims=True)
    variance = (centered**2).mean(-1, keepdims=True)
    for epsilon in epsilons or [0.0]:
        unit = centered / np.sqrt(variance + epsilon)
        for gamma in vectors:
            for beta in vectors:
                if np.allclose(unit * array(gamma) + array(beta), result, rtol=1e-4, atol=1e-4):
                    return gamma, beta, epsilon
    return None
