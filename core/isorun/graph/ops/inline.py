"""Functions put in the place of their calls, in time that grows with the nodes that come of it."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir
from onnx_ir.passes import common

from isorun.errors import UnsupportedModel
from isorun.graph.ops import functions, opset


class InlinePass(common.InlinePass):
    """onnx_ir's pass, with names that are free at once.

    For each node of a call it tries ``name``, ``name_2``, ``name_3`` ... until one is free: of n calls of one function
    the last tries n names. Here a call's nodes have its number in their names before they are copied.
    """

    def _reset(self, model: ir.Model) -> None:
        super()._reset(model)
        self._calls: dict[ir.OperatorIdentifier, int] = {}
        self._names: dict[ir.OperatorIdentifier, list[tuple[Any, str]]] = {}

    def _instantiate_call(self, node: ir.Node, call_site_id: str) -> Any:
        called = node.op_identifier()
        if called not in self._names:
            nodes = list(self._functions[called].all_nodes())
            parts: list[Any] = [*nodes, *(value for node in nodes for value in node.outputs)]
            self._names[called] = [(part, part.name or "inlined") for part in parts]
        number = self._calls[called] = self._calls.get(called, 0) + 1
        if number > 1:
            for part, name in self._names[called]:
                part.name = f"{name}_{number}"
        return super()._instantiate_call(node, call_site_id)


def inline(model: ir.Model) -> bool:
    """Inline the functions of a model but isorun's own, in place: OpenVINO cannot call them.

    Returns:
        Whether there were any.

    Raises:
        UnsupportedModel: a function imports another version of a domain, which the model's version defines differently.
    """
    if all(function.domain == functions.DOMAIN for function in model.functions.values()):
        return False
    _align(model)
    InlinePass(lambda function: function.domain != functions.DOMAIN)(model)
    return True


def _align(model: ir.Model) -> None:
    """Bring functions to the versions of domains that the model imports: once inlined, their nodes are of those."""
    versions = dict(model.graph.opset_imports)
    for function in model.functions.values():
        versions = {**function.opset_imports, **versions}
    if all(function.opset_imports.items() <= versions.items() for function in model.functions.values()):
        return
    common.RemoveUnusedFunctionsPass()(model)  # type: ignore[no-untyped-call]
    for function in model.functions.values():
        for domain, version in function.opset_imports.items():
            if version != versions[domain] and function.domain != functions.DOMAIN:
                _align_function(model, function, domain, versions[domain])


def _align_function(model: ir.Model, function: ir.Function, domain: str, target: int) -> None:
    version, label = function.opset_imports[domain], f"The function {function.domain}.{function.name}"
    how = "Write the function in the version that the model imports"
    if domain:
        nodes = (node for node in function.all_nodes() if node.domain == domain)
        called = {node.op_type for node in nodes if node.op_identifier() not in model.functions}
        if unknown := sorted(name for name in called if opset.differs(name, version, target, domain)):
            change = f"version {target} may define {', '.join(unknown)} differently"
            raise UnsupportedModel(f"{label} imports version {version} of {domain}; {change}. {how}", unknown)
        function.opset_imports[domain] = target
        return
    try:
        opset.move(function, target, label)
    except UnsupportedModel as error:
        if version < target:
            how += ", for example with onnx.inliner.inline_local_functions(model, convert_version=True)"
        raise UnsupportedModel(f"{error}. {how}", error.operators) from error
