"""Names of values in graphs within graphs."""

from __future__ import annotations

import onnx_ir as ir


def distinguish(model: ir.Model) -> None:
    """Give values another name that have that of a value in another graph of the model, in place.

    onnx_ir names the values that are added to a graph without regard to the graphs within it, and ONNX Runtime rejects
    a name that an enclosing graph has, too.
    """
    graphs = list(model.graphs())  # the main one first
    if len(graphs) == 1:
        return
    taken: set[str] = set()
    for graph in graphs:
        for value in _values(graph):
            name, number = value.name, 1
            while value.name and value.name in taken:
                number += 1
                value.name = f"{name}.{number}"
            taken.add(value.name or "")


def _values(graph: ir.Graph) -> dict[ir.Value, None]:
    """The values of a graph, without those of graphs within it."""
    computed = (output for node in graph for output in node.outputs)
    return dict.fromkeys((*graph.inputs, *list(graph.initializers.values()), *computed))
