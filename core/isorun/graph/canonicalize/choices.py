"""Inputs of multiple choice, (batch, choices, sequence), which a graph flattens to (rows, sequence) first.

During fusion, the flattened values are inputs of the graph, so that it is fused as one of (batch, sequence) inputs is.
"""

from __future__ import annotations

from contextlib import suppress

import numpy as np
import onnx_ir as ir

from isorun.graph.analysis.evaluate import CannotEvaluate, Evaluator
from isorun.graph.analysis.tokens import flattened_input
from isorun.graph.io.nodes import needed

_SIZES = (2, 3, 5)

Flattened = dict[ir.Value, ir.Value]
"""The input that replaces each flattened value."""


def flatten(graph: ir.Graph) -> Flattened:
    """Make the flattened values inputs of a graph, in place."""
    replaced = {}
    for value in [node.outputs[0] for node in graph if node.op_type == "Reshape"]:
        source = flattened_input(value)
        if source is None or not _merges_rows(graph, source, value):
            continue
        rows, choices, length = needed(source.shape)
        count = rows * choices if isinstance(rows, int) and isinstance(choices, int) else None
        name = f"{source.name}.flattened"
        replacement = ir.Value(name=name, type=source.type, shape=ir.Shape([count, length]))
        value.replace_all_uses_with(replacement, replace_graph_outputs=True)
        graph.inputs.append(replacement)
        replaced[value] = replacement
    return replaced


def restore(graph: ir.Graph, flattened: Flattened) -> None:
    """Undo :func:`flatten` in place; what was fused since reads the flattened values."""
    for value, replacement in flattened.items():
        value.shape = replacement.shape  # the fusion of the embedding may have named the length
        replacement.replace_all_uses_with(value, replace_graph_outputs=True)
        graph.inputs.remove(replacement)


def _merges_rows(graph: ir.Graph, source: ir.Value, value: ir.Value) -> bool:
    """Whether a value is a (batch, choices, sequence) input whose first two dimensions are merged."""
    inputs = [entry for entry in graph.inputs if entry.shape is not None and len(entry.shape) == 3]
    samples = {}
    for entry in inputs:
        sizes = zip(needed(entry.shape), _SIZES, strict=True)
        shape = [size if isinstance(size, int) else default for size, default in sizes]
        if entry.dtype is not None:
            samples[entry] = np.arange(np.prod(shape)).reshape(shape).astype(entry.dtype.numpy())
    with suppress(CannotEvaluate):
        expected = samples[source].reshape(-1, samples[source].shape[-1])
        return np.array_equal(Evaluator(graph.opset_imports[""], samples)(value), expected)
    return False
