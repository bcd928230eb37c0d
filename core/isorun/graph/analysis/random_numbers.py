"""Whether a model draws random numbers, so that the same feeds have other results in every run."""

from __future__ import annotations

import onnx_ir as ir

from isorun.graph.analysis import tokens
from isorun.graph.io.nodes import label

_DRAWING = ("Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike")


def find(model: ir.Model) -> str:
    """The first node that draws random numbers, such as a dropout in training mode; empty if none does.

    Args:
        model: the model, its functions inlined.
    """
    nodes = model.graph.all_nodes()
    return next((label(node) for node in nodes if _draws(node)), "")


def _draws(node: ir.Node) -> bool:
    if node.domain != "":
        return False
    if node.op_type == "Dropout":
        _, ratio, training = [*node.inputs, None, None][:3]
        return _is_set(training) and (ratio is None or _is_set(ratio))
    return node.op_type in _DRAWING


def _is_set(value: ir.Value | None) -> bool:
    """Whether a value is a constant other than 0, which no feed replaces."""
    tensor = None if value is None or value.is_graph_input() else tokens.constant(value)
    return tensor is not None and bool(tensor.numpy().any())
