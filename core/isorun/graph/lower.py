"""From the fused form to one dialect.

The graph's fused operators get the dialect's bodies and are inlined; what every layer then computes alike,
the mask above all, is computed once. Everything else in the graph stays as it is.
"""

from __future__ import annotations

import onnx
import onnx_ir as ir
from onnx_ir.passes import common

from isorun.errors import UnsupportedModel
from isorun.graph import functions

# Operators whose later versions take more types and otherwise mean the same, so that their nodes can be read
# under any opset from 13 to 23 as they are. (Seen in ONNX's changelog of operators.)
_UNCHANGED = frozenset(
    (
        *("Add", "And", "Cast", "CastLike", "Clip", "Concat", "Constant", "Div", "Equal", "Erf", "Expand", "Flatten"),
        *("Gather", "Gemm", "Identity", "MatMul", "Mul", "Neg", "Not", "Or", "Range", "Reshape", "Shape", "Slice"),
        *("Softmax", "Sqrt", "Squeeze", "Sub", "Tanh", "Transpose", "Unsqueeze", "Where"),
    )
)


def lower(model: ir.Model, dialect: str) -> ir.Model:
    """Lower a model in the fused form, in place.

    Args:
        model: a graph with operators of the domain ``isorun.fused``.
        dialect: one of :func:`isorun.graph.functions.dialects`.

    Raises:
        UnsupportedModel: the graph has other operators that mean something else in the dialect's opset.
    """
    _move_to_opset(model, functions.opset(dialect), dialect)
    wanted = {node.op_type for node in model.graph if functions.is_fused(node)}
    bodies = functions.functions(dialect)
    for name in wanted:
        if name not in bodies:
            raise UnsupportedModel(f"The dialect {dialect!r} has no {functions.DOMAIN}.{name}", [name])
        model.functions[bodies[name].identifier()] = bodies[name]
    for identifier in [each for each in model.functions if each[0] == functions.DOMAIN and each[1] not in wanted]:
        del model.functions[identifier]
    model = common.InlinePass()(model).model
    model.graph.opset_imports.pop(functions.DOMAIN, None)
    common.CommonSubexpressionEliminationPass()(model)
    common.RemoveUnusedNodesPass()(model)
    return model


def _move_to_opset(model: ir.Model, target: int, dialect: str) -> None:
    current = model.graph.opset_imports[""]
    if current == target:
        return
    changed = {
        node.op_type
        for node in model.graph
        if node.domain == "" and node.op_type not in _UNCHANGED and _differs(node.op_type, current, target)
    }
    if changed:
        raise UnsupportedModel(
            f"The model is written in opset {current} and the dialect {dialect!r} in opset {target}, in which "
            f"{', '.join(sorted(changed))} mean something else",
            sorted(changed),
        )
    model.graph.opset_imports[""] = target


def _differs(operator: str, one: int, other: int) -> bool:
    since = {onnx.defs.get_schema(operator, max_inclusive_version=version).since_version for version in (one, other)}
    return len(since) > 1
