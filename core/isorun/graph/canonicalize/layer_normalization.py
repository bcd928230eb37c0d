"""Fusion of decomposed layer normalization, as exporters write it before opset 17, and of RMS normalization, before
opset 23, recognized numerically."""

from __future__ import annotations

import logging
from collections.abc import Callable

import numpy as np
import onnx_ir as ir

from isorun.graph.analysis.evaluate import CannotEvaluate, Evaluator, array, is_constant, sizes
from isorun.graph.io.nodes import needed
from isorun.graph.matching import subgraph
from isorun.graph.ops import functions

_logger = logging.getLogger(__name__)

_MEANS = ("ReduceMean", "GlobalAveragePool")  # tf2onnx writes the latter for the mean over the last of three axes
_OPERATORS = frozenset((*_MEANS, "Sub", "Pow", "Mul", "Add", "Sqrt", "Div", "Reciprocal", "Neg", "Cast"))
_MAX_NODES = 14
_TOLERANCE = 3e-6  # of fp32: a deviation with N - 1 in place of N differs by more up to a width of 100,000

Formula = Callable[[np.ndarray, float], np.ndarray]
"""A normalization without its weight and bias, of an array and an epsilon."""


def fuse(model: ir.Model) -> None:
    """Replace every decomposed normalization with ``LayerNormalization`` or ``RMSNormalization``, in place."""
    for node in list(model.graph):
        if node.domain == "" and node.op_type in _MEANS and not _fuse(model, node):
            _fuse_rms(model, node)
        elif node.domain == "" and node.op_type == functions.RMS_NORM:
            _move_rms(node)
    for node in model.graph:
        if node.domain == "" and node.op_type == "LayerNormalization":
            _remove_casts(model.graph, node)


def _fuse(model: ir.Model, mean: ir.Node) -> bool:
    """Replace the subgraph that begins with a mean by ``LayerNormalization`` over the last axis."""
    entry = mean.inputs[0]
    if entry is None or is_constant(entry) or not mean.outputs[0].uses():
        return False
    match = _match(model, entry, mean, _layer_norm)
    if match is None:
        return False
    value, source, gamma, beta, epsilon = match
    _replace(value, "", "LayerNormalization", [source, gamma, *([] if beta is None else [beta])], epsilon)
    model.graph.opset_imports[""] = max(model.graph.opset_imports[""], 17)
    return True


def _fuse_rms(model: ir.Model, mean: ir.Node) -> None:
    """Replace the subgraph that begins with the square of a mean by the fused ``RMSNormalization``."""
    square = None if mean.inputs[0] is None else mean.inputs[0].producer()
    entry = None if square is None else square.inputs[0]
    if square is None or entry is None or square.op_type not in ("Pow", "Mul") or is_constant(entry):
        return
    match = _match(model, entry, square, _rms_norm)
    if match is not None:
        value, source, gamma, _, epsilon = match
        _replace(value, functions.DOMAIN, functions.RMS_NORM, [source, gamma], epsilon)


def _move_rms(node: ir.Node) -> None:
    """Replace ONNX's ``RMSNormalization`` over the last axis by the fused one."""
    source, gamma = node.inputs[:2]
    if source is None or gamma is None or not subgraph.is_vector(gamma) or sizes(gamma) == (1,):
        return
    if node.attributes.get_int("axis", -1) not in (-1, (subgraph.rank(source) or 0) - 1):
        return
    epsilon = node.attributes.get_float("epsilon", 1e-5)
    op = subgraph.Before(node)
    subgraph.replace_node(node, op(functions.RMS_NORM, source, gamma, domain=functions.DOMAIN, epsilon=epsilon))


_Found = tuple[ir.Value, ir.Value, ir.Value, ir.Value | None, float]


def _match(model: ir.Model, entry: ir.Value, first: ir.Node, formula: Formula) -> _Found | None:
    """The largest subgraph from an entry that is a normalization: its value, the entry, weight, bias and epsilon."""
    match = None
    cast = entry.producer()
    uncast = cast.inputs[0] if cast is not None and cast.op_type == "Cast" else None
    for source in (entry,) if uncast is None else (uncast, entry):
        for value, nodes in subgraph.exits(source, first, _OPERATORS, _MAX_NODES):
            parameters = None if value.dtype != source.dtype else _parameters(model, source, value, nodes, formula)
            if parameters is not None:
                match = (value, source, *parameters)
        if match is not None:
            break
    return match


def _replace(value: ir.Value, domain: str, kind: str, inputs: list[ir.Value], epsilon: float) -> None:
    axis = {} if domain else {"axis": -1}
    subgraph.replace(
        value, subgraph.Before(needed(value.producer()))(kind, *inputs, domain=domain, epsilon=epsilon, **axis)
    )


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
    model: ir.Model, entry: ir.Value, value: ir.Value, nodes: set[ir.Node], formula: Formula
) -> tuple[ir.Value, ir.Value | None, float] | None:
    """Weight, bias and epsilon if ``value`` is the normalization of ``entry``; ``None`` if it is not."""
    constants = {operand for node in nodes for operand in node.inputs if operand is not None and is_constant(operand)}
    vectors = [
        constant
        for constant in constants
        if subgraph.is_vector(constant) and sizes(constant) != (1,) and constant.dtype == value.dtype
    ]
    scalars = (subgraph.scalar(constant) for constant in constants)
    epsilons = sorted({number for number in scalars if number is not None and 0 < number < 0.01})
    if not vectors or subgraph.rank(entry) == 1:
        return None
    (width,) = sizes(vectors[0])
    random = np.random.default_rng(0)
    rank = subgraph.rank(entry)
    # Of the usual rank where it is not known; axes counted from the first are then of another one, too.
    scales = [1, 0.01, 100, *np.sqrt(epsilons)]  # for each epsilon, a deviation at which it matters, and how
    shapes = [(len(scales), *(3,) * (axes - 2), width) for axes in ((rank,) if rank else (3, 4))]
    samples = [
        (random.normal(size=shape) * np.reshape(scales, (-1, *(1,) * (len(shape) - 1)))).astype(np.float32)
        for shape in shapes
    ]
    try:
        results = [Evaluator(model.graph.opset_imports[""], {entry: sample})(value) for sample in samples]
    except CannotEvaluate as why:
        _logger.debug("not a layer normalization: %s", why)
        return None
    biases = [None] if formula is _rms_norm else [None, *vectors]
    for epsilon in epsilons or [0.0]:
        units = [formula(sample, epsilon) for sample in samples]
        for gamma in vectors:
            for beta in biases:
                expected = [unit * array(gamma) + (0 if beta is None else array(beta)) for unit in units]
                if all(map(_is_close, expected, results)):
                    return gamma, beta, epsilon
    return None


def _is_close(expected: np.ndarray, result: np.ndarray) -> bool:
    return expected.shape == result.shape and np.allclose(expected, result, rtol=_TOLERANCE, atol=_TOLERANCE)


def _layer_norm(x: np.ndarray, epsilon: float) -> np.ndarray:
    centered = x - x.mean(-1, keepdims=True)
    return np.asarray(centered / np.sqrt((centered**2).mean(-1, keepdims=True) + epsilon))


def _rms_norm(x: np.ndarray, epsilon: float) -> np.ndarray:
    return np.asarray(x / np.sqrt((x**2).mean(-1, keepdims=True) + epsilon))
