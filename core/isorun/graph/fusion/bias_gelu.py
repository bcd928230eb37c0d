"""GELU after a dense layer, together with the layer's bias.

Found by its ``Erf``, ``Tanh`` or ``Gelu`` node. A GELU in parts is recognised by what it computes: the elementwise
sub-graph around the node is run on numbers from -8 to 8 and compared with

    x/2 (1 + erf(x / sqrt 2))    and    x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))

Matched: any spelling of either by elementwise operators and numbers, over a product and its bias.
Refused: a GELU of something that is no sum with a bias; one of which something else uses a part. A ``Tanh`` or
``Erf`` that is no part of a GELU is none of this fusion's business.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import onnx_ir as ir

from isorun.graph.analysis.evaluate import HALVES, CannotEvaluate, Evaluator, is_constant
from isorun.graph.matching import subgraph
from isorun.graph.matching.report import FusionReport, Refused

KIND = "BiasGelu"

_OPERATORS = frozenset(("Mul", "Div", "Add", "Sub", "Pow", "Sqrt", "Erf", "Tanh", "Neg", "Cast"))
_NODES = 14
_BEFORE = 10  # how far before its Tanh a GELU may begin, in values
_TOLERANCE = 1e-5
_TOLERANCE_OF_HALVES = 5e-3  # their numbers have three digits
_SAMPLE = np.linspace(-8, 8, 257, dtype=np.float32)


def gelu(x: np.ndarray) -> np.ndarray:
    """x times the normal distribution's share below x (Hendrycks and Gimpel, 2016)."""
    return np.asarray(x / 2 * (1 + np.vectorize(math.erf)(x / math.sqrt(2))))


def gelu_tanh(x: np.ndarray) -> np.ndarray:
    """The approximation in the same paper."""
    return np.asarray(x / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))))


_FORMULAS: dict[str, Callable[[np.ndarray], np.ndarray]] = {"BiasGelu": gelu, "BiasGeluTanh": gelu_tanh}
_ANSWERS = {kind: formula(_SAMPLE.astype(np.float64)) for kind, formula in _FORMULAS.items()}


def fuse(model: ir.Model, report: FusionReport) -> None:
    """Fuse every GELU of a normalized model with the bias before it, in place."""
    for node in list(model.graph):
        if node.graph is None or node.domain != "" or node.op_type not in ("Erf", "Tanh", "Gelu"):
            continue
        found = _gelu(node, model.graph.opset_imports[""])
        if found is None:
            continue
        kind, *around = found
        entry, value = subgraph.outside_casts(*around)
        layer = entry.producer()
        bias = None
        if layer is not None and layer.op_type == "Add" and layer.domain == "":
            bias = next((each for each in layer.inputs if subgraph.is_vector(each)), None)
        if layer is None or bias is None:
            report.refuse(KIND, node.name, f"it is of {entry.name!r}, which is no sum with a bias")
            continue
        product = next(each for each in layer.inputs if each is not bias)
        assert product is not None
        try:
            subgraph.put(kind, [product, bias], {}, value)
        except Refused as why:
            report.refuse(KIND, node.name, str(why))
        else:
            report.accept(KIND)


def _gelu(node: ir.Node, opset: int) -> tuple[str, ir.Value, ir.Value] | None:
    """The fused operator, what the GELU is of, and its value."""
    if node.op_type == "Gelu":
        form = node.attributes["approximate"].as_string() if "approximate" in node.attributes else "none"
        assert node.inputs[0] is not None
        return "BiasGelu" if form == "none" else "BiasGeluTanh", node.inputs[0], node.outputs[0]
    for entry in _before(node):
        tolerance = _TOLERANCE_OF_HALVES if entry.dtype in HALVES else _TOLERANCE
        for value, nodes in subgraph.exits(entry, node, _OPERATORS, _NODES):
            if not _only_numbers(nodes):
                break
            if value.dtype != entry.dtype:
                continue
            try:
                answer = Evaluator(opset, {entry: _SAMPLE})(value)
            except CannotEvaluate:
                break
            for kind, expected in _ANSWERS.items():
                if answer.shape == _SAMPLE.shape and np.abs(answer - expected).max() < tolerance:
                    return kind, entry, value
    return None


def _before(node: ir.Node) -> list[ir.Value]:
    """Where a GELU may begin: the values before a node by way of numbers alone, the nearest first."""
    found: dict[ir.Value, None] = {}
    pending = [value for value in node.inputs if value is not None]
    while pending and len(found) < _BEFORE:
        value = pending.pop(0)
        if is_constant(value) or value in found:
            continue
        found[value] = None
        producer = value.producer()
        if producer is not None and producer.op_type in _OPERATORS and _only_numbers({producer}):
            pending.extend(each for each in producer.inputs if each is not None)
    return list(found)


def _only_numbers(nodes: set[ir.Node]) -> bool:
    """Whether the constants among the nodes' inputs are single numbers: a bias is not."""
    constants = (each for node in nodes for each in node.inputs if each is not None and is_constant(each))
    return all(subgraph.scalar(each) is not None for each in constants)
