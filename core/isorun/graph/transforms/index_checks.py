"""Checks of indices in the graph, for runtimes that do not check them.

A lookup that the bounds of the inputs do not protect reads index 0 instead of one outside its table, and an output
counts those that it replaced. A session raises an error if there are any. A count in the body of an ``If``, ``Loop`` or
``Scan`` becomes one of the node's results.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np
import onnx_ir as ir

from isorun.errors import UnsupportedModel
from isorun.graph.analysis.evaluate import subgraphs
from isorun.graph.analysis.index_bounds import Lookup
from isorun.graph.analysis.intervals import dtype_of
from isorun.graph.ops.adding import Beside, Nodes, Operand
from isorun.graph.ops.functions import is_fused
from isorun.types import INDEX_ERRORS

_FIRST_OPSET = 10  # an older Slice has no inputs, an older Less no integers


def add(model: ir.Model, lookups: Sequence[Lookup]) -> list[str]:
    """Check lookups, in place.

    Returns:
        What each element of the output :data:`isorun.types.INDEX_ERRORS` counts.

    Raises:
        UnsupportedModel: a lookup cannot be checked.
    """
    if not lookups:
        return []
    if model.graph.opset_imports[""] < _FIRST_OPSET:
        raise UnsupportedModel(
            f"{describe(lookups[0])} may leave its table, which this backend does not check, and isorun can add the "
            f"check from opset {_FIRST_OPSET} on, got {model.graph.opset_imports['']}. Choose another backend"
        )
    owners = {body: node for node in model.graph.all_nodes() for body in subgraphs(node)}
    counts = []
    for number, lookup in enumerate(lookups):
        if (path := _path(lookup.node, model.graph, owners)) is None or lookup.value is None:
            raise UnsupportedModel(
                f"{describe(lookup)} may leave its table, which this backend does not check, and isorun cannot add "
                "the check to the lowered graph. Choose another backend"
            )
        count = _count(lookup, f"{INDEX_ERRORS}.{number}")
        for level, (owner, body) in enumerate(path):
            count = _result(owner, body, count, f"{INDEX_ERRORS}.{number}.level{level}")
        counts.append(count)
    total = ir.node("Concat", counts, attributes={"axis": 0}, name=INDEX_ERRORS)
    total.outputs[0].name = INDEX_ERRORS
    total.outputs[0].type = ir.TensorType(ir.DataType.INT64)
    total.outputs[0].shape = ir.Shape([len(counts)])
    model.graph.append(total)
    model.graph.outputs.append(total.outputs[0])
    return [describe(lookup) for lookup in lookups]


def outlasting(lookup: Lookup) -> Lookup:
    """A lookup at a node that is there after lowering too: at the index of a fused node, which is put before it."""
    node, index = lookup.node, lookup.value
    if not is_fused(node) or index is None:
        return lookup
    before = ir.node("Identity", [index], name=f"{node.name}.{lookup.slot}")
    result = before.outputs[0]
    result.name, result.type, result.shape = before.name, index.type, index.shape
    node.prepend(before)
    node.replace_input_with(lookup.slot, result)
    return Lookup(before, 0, lookup.span)


def describe(lookup: Lookup) -> str:
    """A lookup, for messages."""
    valid = "" if lookup.span is None else f" of {lookup.span[0]} to {lookup.span[1]}"
    return f"The index{valid} that {lookup.node.op_type} {lookup.node.name!r} reads"


def _path(node: ir.Node, graph: ir.Graph, owners: Mapping[ir.Graph, ir.Node]) -> list[tuple[ir.Node, ir.Graph]] | None:
    """The nodes that a node is within, innermost first, each with its body; ``None`` if results cannot leave one."""
    path = []
    while node.graph is not graph:
        body = node.graph
        if not isinstance(body, ir.Graph) or body not in owners or owners[body].op_type not in ("If", "Loop", "Scan"):
            return None
        node = owners[body]
        path.append((node, body))
    return path


def _result(owner: ir.Node, body: ir.Graph, count: ir.Value, prefix: str) -> ir.Value:
    """The sum of a count over all runs of a body that computes it: (1)."""
    if owner.op_type == "Loop":
        return _carried(owner, body, count, prefix)
    for graph in subgraphs(owner):
        graph.outputs.append(count if graph is body else _zero(f"{prefix}.zero", graph))  # the other branch
    owner.resize_outputs(len(body.outputs))
    if owner.op_type == "If":
        return _declared(owner.outputs[-1], prefix)
    for name in ("scan_output_axes", "scan_output_directions"):
        if name in owner.attributes:
            owner.attributes[name] = ir.AttrInt64s(name, [*owner.attributes[name].as_ints(), 0])
    counts = owner.outputs[-1]
    counts.name, counts.type = prefix, ir.TensorType(ir.DataType.INT64)
    axes = ir.node("Constant", [], attributes={"value": ir.tensor(np.array([-1]))}, name=f"{prefix}.shape")
    flat = ir.node("Reshape", [counts, axes.outputs[0]], name=f"{prefix}.flat")
    total = ir.node("ReduceSum", [flat.outputs[0]], attributes={"keepdims": 1}, name=f"{prefix}.sum")
    for node in (axes, flat, total):
        node.outputs[0].name = node.name
    owner.append((axes, flat, total))
    return _declared(total.outputs[0], f"{prefix}.sum")


def _carried(loop: ir.Node, body: ir.Graph, count: ir.Value, prefix: str) -> ir.Value:
    """The sum over a Loop, from iteration to iteration: OpenVINO returns old results for a loop that does not run."""
    states = max(len(loop.inputs) - 2, 0)
    loop.resize_inputs(3 + states)
    loop.replace_input_with(2 + states, _zero(f"{prefix}.zero", loop))
    before = _declared(ir.Value(), f"{prefix}.before")
    body.inputs.append(before)
    total = ir.node("Add", [before, count], name=f"{prefix}.total")
    body.append(total)
    body.outputs.insert(1 + states, _declared(total.outputs[0], f"{prefix}.total"))
    loop.resize_outputs(len(body.outputs) - 1)
    for old, new in reversed(list(pairwise(loop.outputs[states:]))):  # results of iterations are last
        new.name, new.type, new.shape = old.name, old.type, old.shape
        ir.convenience.replace_all_uses_with(old, new, replace_graph_outputs=True)
    return _declared(loop.outputs[states], prefix)


def _zero(name: str, at: ir.Graph | ir.Node) -> ir.Value:
    """A count of 0, at the end of a graph or before a node."""
    node = ir.node("Constant", [], attributes={"value": ir.tensor(np.zeros(1, np.int64))}, name=name)
    if isinstance(at, ir.Graph):
        at.append(node)
    else:
        at.prepend(node)
    return _declared(node.outputs[0], name)


def _declared(value: ir.Value, name: str) -> ir.Value:
    """A count, with the type that results of a body must have."""
    value.name, value.type, value.shape = name, ir.TensorType(ir.DataType.INT64), ir.Shape([1])
    return value


def _count(lookup: Lookup, prefix: str) -> ir.Value:
    """Replace invalid indices with 0, and count them: (1)."""
    index, op = lookup.value, Beside(lookup.node, prefix)
    assert index is not None
    dtype = dtype_of(index)
    wide = index if dtype == ir.DataType.INT64 else op("Cast", index, to=ir.DataType.INT64.value)
    first: Operand
    size: Operand
    if lookup.span is None:
        size = _size(lookup.node, index, op)
        first = op("Neg", size)
    else:  # every node costs a microsecond or two
        first, size = int(lookup.span[0]), int(lookup.span[1]) + 1
    invalid = op("Or", op("Less", wide, first), op("Not", op("Less", wide, size)))
    # Without a declared type, a constant could not be of the index's
    zero = op("Sub", index, index) if dtype is None else op.constant("zero", np.zeros((), dtype.numpy()))
    lookup.node.replace_input_with(lookup.slot, op("Where", invalid, zero, index))
    total = op("ReduceSum", op("Reshape", op("Cast", invalid, to=ir.DataType.INT64.value), [-1]), keepdims=1)
    return _declared(total, str(total.name))


def _size(node: ir.Node, index: ir.Value, op: Nodes) -> ir.Value:
    """The number of valid indices from 0: a scalar, or one for each element of an index of several dimensions."""
    shape = op("Shape", node.inputs[0])
    if not node.op_type.endswith("ND"):
        return op("Gather", shape, node.attributes.get_int("axis", 0))
    first = [node.attributes.get_int("batch_dims", 0)]
    depth = op("Gather", op("Shape", index), [-1])
    return op("Slice", shape, first, op("Add", depth, first))
