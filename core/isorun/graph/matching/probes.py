"""Probe batches: every kind of mask, in the sizes that the graph's inputs accept.

With a symbolic batch and length, a batch has one row for each kind of mask and is evaluated at two lengths. A fixed
length is the only one evaluated; a fixed batch size splits the rows into several batches.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import numpy as np
import onnx_ir as ir

from isorun.graph.analysis.evaluate import Evaluator, Samples, ancestors, is_constant

MASK_KINDS = 8
"""The number of kinds of mask: no padding, right, left, holes, fully masked, the first token, the last, all but one."""

_LENGTHS = (5, 8)

Evaluate = Callable[[ir.Value], np.ndarray]


class Probes:
    """The probe batches for one graph.

    Attributes:
        batch: the only number of rows that the graph accepts; ``None`` for any.
        rows: the number of rows: one for each kind of mask, rounded up to a multiple of a fixed batch size.
        lengths: the sequence lengths to evaluate, in tokens.
        fixed: whether the graph accepts no other length.
    """

    def __init__(self, graph: ir.Graph) -> None:
        self._graph = graph
        batch, length = (_fixed_size(graph, axis) for axis in (0, 1))
        self.batch: int | None = batch
        self._batches = 1 if batch is None else -(-MASK_KINDS // batch)
        self._flattened = [value for value in graph.inputs if _is_flattened(value)]
        choices = (value.shape[1] for value in self._flattened if value.shape is not None)
        self._choices = max((size for size in choices if isinstance(size, int) and size), default=1)
        self.rows: int = -(-MASK_KINDS // self._choices) * self._choices if batch is None else self._batches * batch
        self.lengths: tuple[int, ...] = _LENGTHS if length is None else (length,)
        self.fixed: bool = length is not None

    def masks(self, length: int) -> np.ndarray:
        """Masks of each kind, (rows, length) int64, with 0 for padding."""
        masks = np.ones((MASK_KINDS, length), np.int64)
        masks[1, length // 2 :] = 0
        masks[2, : length // 3 + 1] = 0
        masks[3, 1::2] = 0
        masks[4] = 0
        masks[5, 1:] = 0
        masks[6, :-1] = 0
        masks[7, length // 2] = 0
        return masks[np.arange(self.rows) % MASK_KINDS]

    def feeds(self, length: int) -> Samples:
        """Zeros for each (batch, sequence, ...) input of the graph, and for images (batch, ...)."""
        choices = (self.rows // self._choices, self._choices, length)
        samples = {value: np.zeros(choices, value.dtype.numpy()) for value in self._flattened if value.dtype}
        for value in self._graph.inputs:
            if value in samples:
                continue
            sizes = [length] if value.shape is None else [size for size in value.shape[1:] if isinstance(size, int)]
            if value.shape is not None and len(sizes) == len(value.shape) - 2:
                sizes.insert(0, length)
            if value.shape is not None and not sizes and len(value.shape) == 3:  # a mask of pairs
                sizes = [length, length]
            if value.shape is not None and sizes == [1] and len(value.shape) == 4:
                sizes = [1, length, length]
            known = value.shape is None or len(sizes) == len(value.shape) - 1
            if not is_constant(value) and value.dtype is not None and known:
                samples[value] = np.zeros((self.rows, *sizes), value.dtype.numpy())
        return samples

    def evaluator(self, samples: Samples) -> Evaluate:
        """Return a function that evaluates values of the graph.

        Args:
            samples: arrays for some values, the rows along their first dimension.
        """
        opset = self._graph.opset_imports[""]
        parts = {value: np.split(array, self._batches) for value, array in samples.items()}
        batches = [
            Evaluator(opset, {value: part[index] for value, part in parts.items()}) for index in range(self._batches)
        ]

        def evaluate(value: ir.Value) -> np.ndarray:
            by_row = len(batches) > 1 and any(ancestor in samples for ancestor in ancestors(value))
            return np.concatenate([batch(value) for batch in batches]) if by_row else batches[0](value)

        return evaluate


def _is_flattened(value: ir.Value) -> bool:
    """Whether an input is (batch, choices, sequence) and only its shape is read (:mod:`canonicalize.choices`)."""
    if value.shape is None or len(value.shape) != 3 or is_constant(value):
        return False
    readers = {use for use in value.consumers() if any(output.uses() for output in use.outputs)}
    return bool(value.uses()) and all(use.op_type == "Shape" for use in readers)


def _fixed_size(graph: ir.Graph, axis: int) -> int | None:
    """The size that every (batch, sequence) input has along an axis; ``None`` if symbolic, or if they differ.

    Without such inputs, as in encoders of images, that of most values that a dense layer reads.
    """
    shapes = [value.shape for value in graph.inputs if not is_constant(value)]
    sizes = Counter(shape[axis] for shape in shapes if shape is not None and len(shape) == 2)
    if len(sizes) > 1:
        return None
    if not sizes:
        dense = (node.inputs[0] for node in graph if node.op_type == "MatMul" and is_constant(node.inputs[1]))
        sizes.update(
            value.shape[axis] for value in dense if value is not None and value.shape and len(value.shape) == 3
        )
    size = max(sizes, key=lambda label: sizes[label], default=None)
    return size or None if isinstance(size, int) else None
