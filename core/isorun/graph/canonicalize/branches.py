"""Replacement of an ``If`` by the branch that is always taken.

A scripted function in a traced model keeps its conditions: DeBERTa-v2 in transformers 4.51 to 4.57 asks in every layer
whether queries and keys have the same length. A condition is decided if it compares two lengths of the graph that are
the same at every length of the samples; others stay.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx_ir as ir
from onnx_ir.passes import common

from isorun.graph.analysis import numbers
from isorun.graph.analysis.evaluate import CannotEvaluate, data_inputs, is_constant, sizes
from isorun.graph.io.nodes import needed
from isorun.graph.matching import subgraph
from isorun.graph.matching.probes import Evaluate, Probes

_LONG_LENGTH = 300
"""A length above those that exporters trace."""
_LONGEST = 1 << 15


def take(model: ir.Model) -> None:
    """Replace every ``If`` of a model whose condition is decided, in place."""
    graph = model.graph
    if not any(_is(node, "If") for node in graph):
        return
    common.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(model)
    lengths = _Lengths(graph)
    for node in list(graph):
        if _is(node, "If") and node.inputs[0] is not None:
            condition = lengths.decided(node.inputs[0])
            if condition is not None:
                taken, skipped = ("then_branch", "else_branch")[:: 1 if condition else -1]
                _replace(node, node.attributes[taken].as_graph())
                for inner in node.attributes[skipped].as_graph().all_nodes():  # so that nothing counts as read by them
                    for index in range(len(inner.inputs)):
                        inner.replace_input_with(index, None)


def _is(node: ir.Node | None, operator: str) -> bool:
    return node is not None and node.domain == "" and node.op_type == operator


class _Lengths:
    """Evaluates what depends on the lengths of a graph's inputs alone."""

    def __init__(self, graph: ir.Graph) -> None:
        self._probes = Probes(graph)
        self._layers = list(_layers_of_tokens(graph))
        self._evaluators: dict[int, Evaluate] = {}

    def decided(self, condition: ir.Value) -> bool | None:
        """The value of a condition if it is always the same and compares two lengths."""
        result, node = True, condition.producer()
        while node is not None and node.domain == "" and node.op_type in ("Cast", "Identity", "Not"):
            result ^= node.op_type == "Not"
            node = None if node.inputs[0] is None else node.inputs[0].producer()
        if node is None or not _is(node, "Equal") or data_inputs(node.outputs[0]):
            return None
        beyond = [number + 1 for number in sorted(numbers.compared([condition])) if number >= _LONG_LENGTH]
        if beyond and beyond[-1] > _LONGEST:
            return None
        for length in self._probes.lengths if self._probes.fixed else (*self._probes.lengths, _LONG_LENGTH, *beyond):
            try:
                if any(value is None or (self._evaluated(value, length) != length).any() for value in node.inputs):
                    return None
            except CannotEvaluate:
                if length < _LONG_LENGTH:  # longer ones, tables of positions may not have
                    return None
        return result

    def _evaluated(self, value: ir.Value, length: int) -> np.ndarray:
        if length not in self._evaluators:
            zero, rows = np.zeros((), np.float32), self._probes.rows  # so that nothing is multiplied
            outputs = {
                layer.output: np.broadcast_to(zero, (rows, length, sizes(layer.weight)[1])) for layer in self._layers
            }
            self._evaluators[length] = self._probes.evaluator({**outputs, **self._probes.feeds(length)})
        return self._evaluators[length](value)


def _layers_of_tokens(graph: ir.Graph) -> Iterator[subgraph.DenseLayer]:
    """The dense layers whose output depends on the data of inputs."""
    dependent = {value for value in graph.inputs if not is_constant(value)}
    for node in graph:
        if node.op_type not in ("Shape", "Size") and any(value in dependent for value in node.inputs):
            dependent.update(node.outputs)
            if (layer := subgraph.dense(node.outputs[0])) is not None:
                yield layer


def _replace(node: ir.Node, branch: ir.Graph) -> None:
    """Replace an ``If`` by the nodes of a branch. Their names are unique within the branch only."""
    graph, prefix = subgraph.graph_of(node), node.outputs[0].name
    for name, value in list(branch.initializers.items()):
        moved = subgraph.constant(graph, f"{prefix}.{name}", needed(value.const_value))
        ir.convenience.replace_all_uses_with(value, moved)
    outputs, nodes = list(branch.outputs), list(branch)
    branch.outputs.clear()
    branch.remove(nodes)
    for index, current in enumerate(nodes):
        current.name = f"{prefix}.{index}"
        for value in current.outputs:
            value.name = f"{prefix}.{value.name}"
    node.prepend(nodes)
    for old, new in zip(node.outputs, outputs, strict=True):
        subgraph.replace(old, new)
    graph.remove(node, safe=True)
