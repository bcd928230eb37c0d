"""From the fused form to one dialect.

The graph's fused operators get the dialect's functions and are inlined; what every layer then computes alike,
such as the mask, is computed once. Everything else in the graph stays as it is.
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir
from onnx_ir.passes import common

from isorun.graph.ops import functions, opset
from isorun.graph.ops.inline import InlinePass


def lower(model: ir.Model, dialect: str, overrides: Sequence[str] = ()) -> ir.Model:
    """Lower a model in the fused form, in place.

    Args:
        model: a graph with operators of the domain ``isorun.fused``.
        dialect: one of :func:`isorun.graph.ops.functions.dialects`, or ``fused`` for the fused form, in the opset
            of its bodies.
        overrides: texts of functions that replace the dialect's, the first that has a function for a node wins.

    Raises:
        UnsupportedModel: the dialect has no function for one of the fused operators, or the graph has other operators
            that mean something else in the dialect's opset.
    """
    if dialect == functions.FUSED:
        opset.move(model.graph, functions.opset(functions.BODIES))
        functions.carry(model)
        return model
    opset.move(model.graph, functions.opset(dialect))
    functions.put(model, dialect, overrides)
    model = InlinePass()(model).model
    model.graph.opset_imports.pop(functions.DOMAIN, None)
    common.CommonSubexpressionEliminationPass()(model)
    common.RemoveUnusedNodesPass()(model)
    return model
