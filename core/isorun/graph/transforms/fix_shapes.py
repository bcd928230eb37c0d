"""A model for inputs of fixed shapes: every size is a number, and what follows from sizes is computed here."""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir

from isorun.graph.analysis.batch_sizes import fixed_shape
from isorun.graph.canonicalize import constants
from isorun.graph.ops.inline import InlinePass

_PASSES = 8


def apply(model: ir.Model, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
    """Fix the shapes of a model's inputs, in place.

    Args:
        model: the model.
        shapes: by input. An input that is not fed has the shape of its default value.

    Returns:
        The shapes of those outputs whose sizes are all known.
    """
    if model.functions:
        InlinePass()(model)
    graph = model.graph
    for value in graph.inputs:
        shape = shapes.get(value.name or "")
        if shape is not None:
            value.shape = ir.Shape(shape)
        elif value.const_value is not None:
            value.shape = ir.Shape(value.const_value.shape.numpy())
    for node in graph.all_nodes():
        for value in node.outputs:
            value.shape = None  # declared with symbols, which the inference would keep
    # A computed shape, such as that of a Reshape, lets the next pass infer more.
    for _ in range(_PASSES):
        nodes = len(graph)
        constants.simplify(model)
        if len(graph) == nodes:
            break
    return {value.name or "": shape for value in graph.outputs if (shape := fixed_shape(value)) is not None}
