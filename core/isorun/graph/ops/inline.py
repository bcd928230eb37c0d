"""Functions put in the place of their calls, in time that grows with the nodes that come of it."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir
from onnx_ir.passes import common

from isorun.graph.ops import functions


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


def inlined(model: ir.Model) -> ir.Model:
    """A model without functions but isorun's own: the model itself if it has no others."""
    if all(function.domain == functions.DOMAIN for function in model.functions.values()):
        return model
    model = model.clone()
    inline_others(model)
    return model


def inline_others(model: ir.Model) -> None:
    """Inline the functions of a model but isorun's own, in place."""
    common.InlinePass(lambda function: function.domain != functions.DOMAIN)(model)
