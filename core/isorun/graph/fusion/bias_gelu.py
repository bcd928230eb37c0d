"""Activations: GELU after a dense layer, together with the layer's bias; and gated activations.

Candidates are ``Erf``, ``Tanh``, ``Gelu`` and ``Sigmoid`` nodes. A decomposed activation is recognized numerically: the
elementwise subgraph around the node is evaluated from -8 to 8 and compared with

    x/2 (1 + erf(x / sqrt 2)),    x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))    and    x sigmoid(x)

Matched: any decomposition of these into elementwise operators and scalars, applied to a product with or without a bias;
and the product of one with a gate, another dense layer or another part of the same one. Parts of a layer become layers
of their own, whose results need not be copied apart.

Rejected: a GELU of another value. A ``Tanh``, ``Erf`` or ``Sigmoid`` outside an activation is ignored, and so is x
sigmoid(x) without a gate, and an activation with an intermediate value that other nodes use.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import onnx_ir as ir

from isorun.graph.analysis.evaluate import CannotEvaluate, Evaluator, is_constant, sizes
from isorun.graph.io.nodes import needed
from isorun.graph.matching import subgraph
from isorun.graph.matching.report import CannotFuse, FusionReport

KIND = "BiasGelu"
GATED = "GatedActivation"

_OPERATORS = frozenset(("Mul", "Div", "Add", "Sub", "Pow", "Sqrt", "Erf", "Tanh", "Sigmoid", "Neg", "Cast"))
_MAX_NODES = 14
_MAX_ENTRIES = 10  # the number of values before the node that are tested as the GELU's input
_TOLERANCE = 1e-5
_HALF_TOLERANCES = {ir.DataType.FLOAT16: 1e-4, ir.DataType.BFLOAT16: 1e-3}  # the constants are rounded
_SAMPLE = np.linspace(-8, 8, 257, dtype=np.float32)


def gelu(x: np.ndarray) -> np.ndarray:
    """x times the normal distribution function at x (Hendrycks and Gimpel, 2016)."""
    return np.asarray(x / 2 * (1 + np.vectorize(math.erf)(x / math.sqrt(2))))


def silu(x: np.ndarray) -> np.ndarray:
    """x times the logistic function at x (Elfwing et al., 2017)."""
    return np.asarray(x / (1 + np.exp(-x)))


def gelu_tanh(x: np.ndarray) -> np.ndarray:
    """The approximation in the same paper."""
    return np.asarray(x / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))))


_FORMULAS: dict[str, Callable[[np.ndarray], np.ndarray]] = {"Gelu": gelu, "GeluTanh": gelu_tanh, "Silu": silu}
_EXPECTED = {kind: formula(_SAMPLE.astype(np.float64)) for kind, formula in _FORMULAS.items()}


def fuse(model: ir.Model, report: FusionReport) -> None:
    """Fuse every activation of a normalized model with its bias or its gate, in place."""
    for node in list(model.graph):
        if node.graph is None or node.domain != "" or node.op_type not in ("Erf", "Tanh", "Gelu", "Sigmoid"):
            continue
        match = _activation(node, model.graph.opset_imports[""])
        if match is None:
            continue
        form, *ends = match
        entry, value = subgraph.outside_casts(*ends)
        gated = _gate(value)
        if gated is None and form == "Silu":
            continue
        with report.candidate(KIND if gated is None else GATED, node.name):
            if gated is None:
                subgraph.put(f"Bias{form}", _product_and_bias(entry), {}, value)
            else:
                gate, product = gated
                subgraph.put(f"Gated{form}", [_own_layer(part) for part in (entry, gate)], {}, product)


def _product_and_bias(entry: ir.Value) -> list[ir.Value]:
    """What an activation reads, before its bias. A missing bias is zeros."""
    total = entry.producer()
    if total is not None and total.op_type == "Add" and total.domain == "":
        for product, bias in (total.inputs, total.inputs[::-1]):
            if product is not None and bias is not None and subgraph.is_vector(bias) and _is_as_wide(product, bias):
                return [product, bias]
    if total is None or (layer := subgraph.dense(entry)) is None:
        raise CannotFuse(f"its input {entry.name!r} is not a sum with a bias, nor a product with weights")
    zeros = np.zeros(sizes(layer.weight)[1], subgraph.dtype(layer.weight).numpy())
    return [entry, subgraph.Before(total).constant("zeros", zeros)]


def _is_as_wide(product: ir.Value, bias: ir.Value) -> bool:
    """Whether a bias has a number for each column of a product, rather than one for all."""
    layer = subgraph.dense(product)
    width = sizes(layer.weight)[1] if layer is not None else None if product.shape is None else product.shape[-1]
    return width == sizes(bias)[0] if isinstance(width, int) else sizes(bias) != (1,)


def _gate(value: ir.Value) -> tuple[ir.Value, ir.Value] | None:
    """What an activation is multiplied by, and the product; ``None`` if it is used in another way."""
    uses = value.consumers()
    if len(uses) != 1 or uses[0].op_type != "Mul" or uses[0].domain != "" or value.is_graph_output():
        return None
    gate = next((operand for operand in uses[0].inputs if operand is not value), None)
    if gate is None or is_constant(gate) or (subgraph.dense(gate) is None and subgraph.part(gate) is None):
        return None
    return gate, uses[0].outputs[0]


def _own_layer(value: ir.Value) -> ir.Value:
    """A part of a dense layer's output as the output of a layer of its own; any other value as it is."""
    part = subgraph.part(value)
    before = value.producer()
    if part is None or before is None:
        return value
    layer, begin, end = part
    op = subgraph.Before(before)
    bias = None if layer.bias is None else op.columns(layer.bias, begin, end)
    result = op.dense(layer.input, op.columns(layer.weight, begin, end), bias)
    result.type, result.shape = value.type, value.shape
    return result


def _activation(node: ir.Node, opset: int) -> tuple[str, ir.Value, ir.Value] | None:
    """The activation, its input, and its output."""
    if node.op_type == "Gelu":
        form = node.attributes.get_string("approximate", "none")
        return "Gelu" if form == "none" else "GeluTanh", needed(node.inputs[0]), node.outputs[0]
    for entry in _possible_inputs(node):
        tolerance = _TOLERANCE if entry.dtype is None else _HALF_TOLERANCES.get(entry.dtype, _TOLERANCE)
        for value, nodes in subgraph.exits(entry, node, _OPERATORS, _MAX_NODES):
            if not _only_scalars(nodes):
                break
            if value.dtype != entry.dtype:
                continue
            try:
                result = Evaluator(opset, {entry: _SAMPLE})(value)
            except CannotEvaluate:
                break
            for kind, expected in _EXPECTED.items():
                if result.shape == _SAMPLE.shape and np.abs(result - expected).max() < tolerance:
                    return kind, entry, value
    return None


def _possible_inputs(node: ir.Node) -> list[ir.Value]:
    """The values before a node, through operators with scalar constants only, the closest first."""
    entries: dict[ir.Value, None] = {}
    pending = [value for value in node.inputs if value is not None]
    while pending and len(entries) < _MAX_ENTRIES:
        value = pending.pop(0)
        if is_constant(value) or value in entries:
            continue
        entries[value] = None
        producer = value.producer()
        if producer is not None and producer.op_type in _OPERATORS and _only_scalars({producer}):
            pending.extend(source for source in producer.inputs if source is not None)
    return list(entries)


def _only_scalars(nodes: set[ir.Node]) -> bool:
    """Whether the constants among the nodes' inputs are scalars; a bias is not."""
    constants = (value for node in nodes for value in node.inputs if value is not None and is_constant(value))
    return all(subgraph.scalar(value) is not None for value in constants)
