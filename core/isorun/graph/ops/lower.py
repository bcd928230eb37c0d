"""From the fused form to one dialect.

The graph's fused operators get the dialect's functions and are inlined; what every layer then computes alike,
such as the mask, is computed once. Everything else in the graph stays as it is.
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir
from onnx_ir.passes import common

from isorun.errors import InvalidArgument, did_you_mean
from isorun.graph.ops import compose, functions, opset
from isorun.graph.ops.inline import InlinePass
from isorun.types import DIALECTS, Dialect


def lower(model: ir.Model, dialect: str, overrides: Sequence[str] = ()) -> ir.Model:
    """Lower a model in the fused form, in place.

    Args:
        model: a graph with operators of the domain ``isorun.fused``.
        dialect: one of :func:`isorun.graph.ops.functions.dialects`; a variant of one
            (:class:`isorun.types.Dialect`); or ``fused`` for the fused form, in the opset of its bodies.
        overrides: texts of functions that replace the dialect's, the first that has a function for a node wins.

    Raises:
        InvalidArgument: there is no such dialect, or the functions of a variant cannot be read.
        UnsupportedModel: the dialect has no function for one of the fused operators, or the graph has other operators
            that are defined differently in the dialect's opset.
    """
    base = dialect.base if isinstance(dialect, Dialect) else dialect
    if base not in DIALECTS:
        raise InvalidArgument(f"Unknown dialect {base!r}{did_you_mean(base, DIALECTS)}")
    if isinstance(dialect, Dialect):
        _check(dialect)
        overrides = (*overrides, dialect.functions)
    if base == functions.FUSED:
        opset.move(model.graph, functions.opset(functions.BODIES))
        functions.carry(model)
        return model
    opset.move(model.graph, functions.opset(base))
    functions.put(model, base, overrides)
    model = InlinePass()(model).model
    model.graph.opset_imports.pop(functions.DOMAIN, None)
    common.CommonSubexpressionEliminationPass()(model)
    common.RemoveUnusedNodesPass()(model)
    return model


def _check(dialect: Dialect) -> None:
    """Reject a variant whose functions cannot be used, before any model is changed."""
    base = functions.BODIES if dialect.base == functions.FUSED else dialect.base
    try:
        compose.check(dialect.functions, functions.chain(base, half=True))
    except ValueError as error:
        raise InvalidArgument(f"The functions of the dialect {str(dialect)!r} cannot be used: {error}") from error
