"""Deduplication of large weights.

PyTorch's dynamo exporter transposes and writes the weights of each layer, even if layers share them (ALBERT). Unlike
onnx_ir's hashing pass, this reads a weight as a whole only if samples of its elements equal another's.
"""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import onnx_ir as ir

from isorun.graph.analysis.evaluate import is_constant
from isorun.graph.io.nodes import needed

_MIN_BYTES = 1024  # onnx_ir's pass deduplicates smaller ones
_SAMPLES = 64


def deduplicate(graph: ir.Graph) -> None:
    """Merge weights with equal elements, in place."""
    groups: dict[tuple[object, ...], list[ir.Value]] = defaultdict(list)
    for value in graph.initializers.values():
        tensor = value.const_value
        if tensor is None or isinstance(tensor, ir.LazyTensor | ir.StringTensor) or not is_constant(value):
            continue
        if tensor.nbytes <= _MIN_BYTES:
            continue
        array = tensor.numpy().reshape(-1)
        sample = array[:: max(1, array.size // _SAMPLES)].tobytes()
        groups[tensor.dtype, tuple(tensor.shape), sample].append(value)
    for values in groups.values():
        kept: list[tuple[ir.Value, np.ndarray]] = []
        for value in values:
            # Folded transpositions lie in the order of their sources, which cannot be viewed as bytes.
            array = np.ascontiguousarray(needed(value.const_value).numpy()) if len(values) > 1 else np.empty(0)
            same = next(
                (original for original, known in kept if np.array_equal(known.view(np.uint8), array.view(np.uint8))),
                None,
            )
            if same is None:
                kept.append((value, array))
            elif not value.is_graph_output():
                value.replace_all_uses_with(same)
