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
        computed = (output for node in graph for output in node.outputs)
        for value in dict.fromkeys((*graph.inputs, *list(graph.initializers.values()), *computed)):
            name, number = value.name, 1
            while value.name and value.name in taken:
                number += 1
                value.name = f"{name}.{number}"
            taken.add(value.name or "")
