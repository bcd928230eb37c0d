"""GELU after a dense layer, together with the layer's bias.

Candidates are ``Erf``, ``Tanh`` and ``Gelu`` nodes. A decomposed GELU is recognized numerically: the elementwise
subgraph around the node is evaluated from -8 to 8 and compared with

    x/2 (1 + erf(x / sqrt 2))    and    x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))

Matched: any decomposition of either into elementwise operators and scalars, applied to a product plus a bias.
Rejected: a GELU whose input is not a sum with a bias. A ``Tanh`` or ``Erf`` outside a GELU is ignored, and so is a GELU
with an intermediate value that other nodes use.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import onnx_ir as ir

from isorun.graph.analysis.evaluate import HALVES, CannotEvaluate, Evaluator, is_constant
from isorun.graph.matching import subgraph
from isorun.graph.matching.report import CannotFuse, FusionReport

KIND = "BiasGelu"

_OPERATORS = frozenset(("Mul", "Div", "Add", "Sub", "Pow", "Sqrt", "Erf", "Tanh", "Neg", "Cast"))
_MAX_NODES = 14
_MAX_ENTRIES = 10  # the number of values before the node that are tested as the GELU's input
_TOLERANCE = 1e-5
_HALF_TOLERANCE = 5e-3  # 16-bit constants have three significant digits
_SAMPLE = np.linspace(-8, 8, 257, dtype=np.float32)


def gelu(x: np.ndarray) -> np.ndarray:
    """x times the normal distribution function at x (Hendrycks and Gimpel, 2016)."""
    return np.asarray(x / 2 * (1 + np.vectorize(math.erf)(x / math.sqrt(2))))


def gelu_tanh(x: np.ndarray) -> np.ndarray:
    """The approximation in the same paper."""
    return np.asarray(x / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))))


_FORMULAS: dict[str, Callable[[np.ndarray], np.ndarray]] = {"BiasGelu": gelu, "BiasGeluTanh": gelu_tanh}
_EXPECTED = {kind: formula(_SAMPLE.astype(np.float64)) for kind, formula in _FORMULAS.items()}


def fuse(model: ir.Model, report: FusionReport) -> None:
    """Fuse every GELU of a normalized model with the bias before it, in place."""
    for node in list(model.graph):
        if node.graph is None or node.domain != "" or node.op_type not in ("Erf", "Tanh", "Gelu"):
            continue
        match = _gelu(node, model.graph.opset_imports[""])
        if match is None:
            continue
        kind, *ends = match
        entry, value = subgraph.outside_casts(*ends)
        total = entry.producer()
        bias = None
        if total is not None and total.op_type == "Add" and total.domain == "":
            bias = next((operand for operand in total.inputs if subgraph.is_vector(operand)), None)
        if total is None or bias is None:
            report.refuse(KIND, node.name, f"its input {entry.name!r} is not a sum with a bias")
            continue
        product = next(operand for operand in total.inputs if operand is not bias)
        assert product is not None
        try:
            subgraph.put(kind, [product, bias], {}, value)
        except CannotFuse as why:
            report.refuse(KIND, node.name, str(why))
        else:
            report.accept(KIND)


def _gelu(node: ir.Node, opset: int) -> tuple[str, ir.Value, ir.Value] | None:
    """The fused operator, the GELU's input, and its output."""
    if node.op_type == "Gelu":
        form = node.attributes.get_string("approximate", "none")
        assert node.inputs[0] is not None
        return "BiasGelu" if form == "none" else "BiasGeluTanh", node.inputs[0], node.outputs[0]
    for entry in _possible_inputs(node):
        tolerance = _HALF_TOLERANCE if entry.dtype in HALVES else _TOLERANCE
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
