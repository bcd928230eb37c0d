"""Weights that an exporter has written several times become one.

PyTorch's newer exporter transposes each layer's weights by itself, and writes each result, though the layers of an
ALBERT have one set of weights.
"""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import onnx_ir as ir

from isorun.graph.analysis.evaluate import is_constant

_SMALLEST = 1024  # bytes; smaller ones are compared by onnx_ir's own pass
_SAMPLES = 64


def share(graph: ir.Graph) -> None:
    """Use one weight for all that have the same elements, in place. Only those that look alike are read whole."""
    alike: dict[tuple[object, ...], list[ir.Value]] = defaultdict(list)
    for value in graph.initializers.values():
        tensor = value.const_value
        if tensor is None or isinstance(tensor, ir.LazyTensor | ir.StringTensor) or not is_constant(value):
            continue
        if tensor.nbytes <= _SMALLEST:
            continue
        array = tensor.numpy().reshape(-1)
        sample = array[:: max(1, array.size // _SAMPLES)].tobytes()
        alike[tensor.dtype, tuple(tensor.shape), sample].append(value)
    for values in alike.values():
        kept: list[tuple[ir.Value, np.ndarray]] = []
        for value in values:
            assert value.const_value is not None
            array = value.const_value.numpy() if len(values) > 1 else np.empty(0)
            same = next(
                (one for one, known in kept if np.array_equal(known.view(np.uint8), array.view(np.uint8))), None
            )
            if same is None:
                kept.append((value, array))
            elif not value.is_graph_output():
                value.replace_all_uses_with(same)
