"""Works around the known faults of a runtime: nodes that it computes wrongly are rewritten, or the model is refused."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

import numpy as np
import onnx_ir as ir
from onnx import defs

from isorun.errors import UnsupportedModel
from isorun.graph.canonicalize import constants, opset_upgrade
from isorun.graph.io.nodes import all_nodes, operator, tensors
from isorun.graph.io.shape_inference import infer_shapes
from isorun.types.faults import CONSTANTS, EMPTY, Fault

_INT32 = np.iinfo(np.int32)
_WIDE = (ir.DataType.INT64, ir.DataType.UINT64, ir.DataType.UINT32)
_READ = 2**20  # elements; a larger integer tensor is a table of weights, which is not searched


def operators(model: ir.Model) -> list[str]:
    """The operators of a model, with :data:`CONSTANTS` if it has integers that 32 bits cannot hold, and :data:`EMPTY`
    if it has constants without elements."""
    return sorted({operator(node) for node in all_nodes(model)} | {kind for kind, _ in _special_constants(model)})


def apply(model: ir.Model, faults: Sequence[Fault]) -> list[str]:
    """Rewrite the nodes that a runtime computes wrongly, in place.

    Args:
        model: what the runtime would get.
        faults: the rows of its table.

    Returns:
        What was rewritten: operator, node and condition.

    Raises:
        UnsupportedModel: there is no equivalent of a node; names it and the reason.
    """
    early = model.graph.opset_imports.get("", 1) < opset_upgrade.FIRST_READ
    untouched = model.graph.clone() if early else model.graph
    try:
        return _apply(model, faults)
    except _OfLaterOpset:
        model.graph = untouched
        opset_upgrade.upgrade(model)
        return _apply(model, faults)


class _OfLaterOpset(Exception):
    """The nodes that replace another one do not exist in the model's opset, or have other inputs there."""


def _apply(model: ir.Model, faults: Sequence[Fault]) -> list[str]:
    infer_shapes(model)
    opset = model.graph.opset_imports.get("", 1)
    for kind, value in _special_constants(model):
        for fault in faults:
            if fault.operator == kind and fault.applies is not None and fault.applies(value, opset):
                raise _refused(fault, f"The constant {value.name!r}")
    nodes = list(all_nodes(model))
    rewritten = _rewrite(nodes, faults, opset)
    if constants.mark(model):  # runtimes compute these when they load a model
        rewritten += _rewrite([node for node in nodes if node.graph is not None], faults, opset)
    return rewritten


def _rewrite(nodes: Sequence[ir.Node], faults: Sequence[Fault], opset: int) -> list[str]:
    rewritten = []
    for node in nodes:
        for fault in faults:
            if fault.operator != operator(node) or fault.applies is None or not fault.applies(node, opset):
                continue
            label = f"The node {node.name or (node.outputs[0].name if node.outputs else '')!r} ({node.op_type})"
            if fault.rewrite is None or node.graph is None:
                raise _refused(fault, label)
            new = list(fault.rewrite(node))
            if not all(_exists(part, opset) for part in new):
                raise _OfLaterOpset
            name = node.name or node.outputs[0].name
            values = [value for part in new for value in part.outputs][-len(node.outputs) :]
            # An omitted output has no name: few operators may have one.
            pairs = [(old, value) for old, value in zip(node.outputs, values, strict=True) if old.name]
            ir.convenience.replace_nodes_and_values(node.graph, node, [node], new, *zip(*pairs, strict=True))
            rewritten.append(f"{node.op_type} {name!r}: {fault.condition}")
            break
    return rewritten


def _exists(node: ir.Node, opset: int) -> bool:
    if node.domain:
        return True
    try:
        schema = defs.get_schema(node.op_type, opset)
    except defs.SchemaError:
        return False
    return len(node.inputs) <= schema.max_input and node.attributes.keys() <= schema.attributes.keys()


def _refused(fault: Fault, what: str) -> UnsupportedModel:
    return UnsupportedModel(
        f"{what} would be computed wrongly by the runtime ({fault.versions}): {fault.condition}: {fault.result}. "
        "Change the model, or choose another backend",
        [] if fault.operator in (CONSTANTS, EMPTY) else [fault.operator],
    )


def _special_constants(model: ir.Model) -> Iterator[tuple[str, ir.Value]]:
    """The constants that runtimes may misread, each with :data:`CONSTANTS` or :data:`EMPTY`; of ``Constant`` and
    ``ConstantOfShape``, their outputs."""
    graphs = dict.fromkeys(model.graphs())
    for node in all_nodes(model):
        if isinstance(node.graph, ir.Graph):  # of a function's node
            graphs[node.graph] = None
        if not node.domain and node.op_type in ("Constant", "ConstantOfShape"):
            for attribute in node.attributes.values():
                if _is_wide(_integers(attribute)):
                    yield CONSTANTS, node.outputs[0]
                if any(not tensor.size for tensor in tensors(attribute)):
                    yield EMPTY, node.outputs[0]
    for graph in graphs:
        for value in graph.initializers.values():
            if _is_wide(_tensor_integers(value.const_value)):
                yield CONSTANTS, value
            if value.const_value is not None and not value.const_value.size:
                yield EMPTY, value


def _integers(attribute: ir.Attr) -> Collection[int]:
    if attribute.is_ref():
        return ()
    if attribute.type == ir.AttributeType.TENSOR:
        return _tensor_integers(attribute.as_tensor())
    if attribute.type == ir.AttributeType.INT:
        return [attribute.as_int()]
    return attribute.as_ints() if attribute.type == ir.AttributeType.INTS else ()


def _tensor_integers(tensor: ir.TensorProtocol | None) -> Collection[int]:
    if tensor is None or tensor.dtype not in _WIDE or not 0 < tensor.size <= _READ:
        return ()
    array = tensor.numpy()
    return [int(array.min()), int(array.max())]


def _is_wide(integers: Collection[int]) -> bool:
    return any(not _INT32.min <= number <= _INT32.max for number in integers)
