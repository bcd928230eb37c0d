"""From the fused form to one dialect.

The graph's fused operators get the dialect's bodies and are inlined; what every layer then computes alike,
the mask above all, is computed once. Everything else in the graph stays as it is.
"""

from __future__ import annotations

import onnx_ir as ir
from onnx_ir.passes import common

from isorun.errors import UnsupportedModel
from isorun.graph.ops import functions, opset


def lower(model: ir.Model, dialect: str) -> ir.Model:
    """Lower a model in the fused form, in place.

    Args:
        model: a graph with operators of the domain ``isorun.fused``.
        dialect: one of :func:`isorun.graph.ops.functions.dialects`.

    Raises:
        UnsupportedModel: the graph has other operators that mean something else in the dialect's opset.
    """
    opset.move(model.graph, functions.opset(dialect))
    wanted = {node.op_type for node in model.graph if functions.is_fused(node)}
    bodies = functions.functions(dialect, half=functions.is_half(model))
    if missing := wanted - bodies.keys():
        names = ", ".join(f"{functions.DOMAIN}.{name}" for name in sorted(missing))
        raise UnsupportedModel(f"The dialect {dialect!r} has no {names}", sorted(missing))
    model.functions.update({body.identifier(): body for body in bodies.values()})
    model = common.InlinePass()(model).model
    for identifier in [each for each in model.functions if each[0] == functions.DOMAIN]:
        del model.functions[identifier]  # the dialect's others, which nothing here calls
    model.graph.opset_imports.pop(functions.DOMAIN, None)
    common.CommonSubexpressionEliminationPass()(model)
    common.RemoveUnusedNodesPass()(model)
    return model
