"""Validation of single nodes, as far as ONNX's shape inference reads what it has not checked, which ends the process.

Runtimes check the rest, with messages of their own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import TypeVar

import onnx
import onnx_ir as ir

from isorun.errors import InvalidModel

T = TypeVar("T")
_MAX_AXIS = 256
"""No tensor has that many axes."""
_AXES = ("axis", "batch_axis", "batch_dims", "time_axis")
_STANDARD = ("", "ai.onnx.ml")
_ALIAS = "ai.onnx"


def domain(name: str) -> str:
    """The domain of a name: ONNX's own operators have two, ``ai.onnx`` and the empty one."""
    return "" if name == _ALIAS else name


def needed(value: T | None) -> T:
    """What is there: an operator requires it, or it was looked for before."""
    assert value is not None
    return value


def operator(node: onnx.NodeProto | ir.Node) -> str:
    """A node's operator, after its domain unless that is ONNX's."""
    return f"{node.domain}.{node.op_type}" if node.domain else node.op_type


def label(node: onnx.NodeProto | ir.Node) -> str:
    """A node's operator, and its name if it has one, for messages."""
    return f"{operator(node)} {node.name!r}" if node.name else operator(node)


def all_nodes(model: ir.Model) -> Iterator[ir.Node]:
    """The nodes of a model's graphs and functions, at any depth."""
    yield from model.graph.all_nodes()
    for function in model.functions.values():
        yield from function.all_nodes()


def tensors(attribute: ir.Attr) -> Sequence[ir.TensorProtocol]:
    """The tensors of an attribute."""
    if attribute.is_ref() or attribute.value is None:
        return ()
    if attribute.type == ir.AttributeType.TENSOR:
        return (attribute.as_tensor(),)
    return attribute.as_tensors() if attribute.type == ir.AttributeType.TENSORS else ()


def check(name: str, node: onnx.NodeProto, opsets: dict[str, int]) -> None:
    """Check the inputs, outputs and axes of a node of ONNX's own operators.

    Args:
        name: the model's name in error messages.
        node: the node.
        opsets: the version of each domain.

    Raises:
        InvalidModel: an input that the operator requires is missing, or there is no such axis; names the node.
    """
    if domain(node.domain) not in _STANDARD:
        return
    required = _required(node.op_type, domain(node.domain), opsets.get(domain(node.domain), 0))
    if required and (len(node.input) < required or not all(node.input[:required])):
        raise _invalid(name, node, f"needs {required} input(s), got {[value or None for value in node.input]}")
    axes = [(item.name, item.i) for item in node.attribute if item.name in _AXES]
    for attribute, axis in axes:
        lowest = 0 if attribute == "batch_dims" else -_MAX_AXIS
        if not lowest <= axis < _MAX_AXIS:
            raise _invalid(name, node, f"has {attribute} = {axis}, which no tensor has")
    if node.op_type == "Split":
        parts = [item.i for item in node.attribute if item.name == "num_outputs"]
        if parts and parts[0] != len(node.output):
            raise _invalid(name, node, f"has num_outputs = {parts[0]} and {len(node.output)} output(s)")


def _invalid(name: str, node: onnx.NodeProto, what: str) -> InvalidModel:
    return InvalidModel(f"{name} is not a valid graph: {label(node)} {what}")


@lru_cache(maxsize=1024)  # names of operators are those of files
def _required(operator: str, domain: str, version: int) -> int:
    """How many inputs from the first one a node must have; 0 if the operator is unknown."""
    try:
        schema = onnx.defs.get_schema(operator, version, domain)
    except onnx.defs.SchemaError:
        return 0
    single = onnx.defs.OpSchema.FormalParameterOption.Single
    kinds = [parameter.option == single for parameter in schema.inputs]
    return kinds.index(False) if False in kinds else len(kinds)
