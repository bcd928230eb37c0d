"""What a part of a graph is tried on: batches with every kind of mask, in the sizes that the graph's inputs take.

Where batch and length are free there is a row for each kind of mask, in two lengths. Where an exporter has fixed the
length, it is the only one; where it has fixed the batch, the rows are tried in as many batches as they fill.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx_ir as ir

from isorun.graph.analysis.evaluate import Evaluator, Samples, ancestors, is_constant

KINDS = 5
"""How many kinds of mask there are: none, right, left, holes, all."""

_LENGTHS = (5, 8)

Evaluate = Callable[[ir.Value], np.ndarray]


class Trials:
    """The batches for one graph.

    Attributes:
        rows: how many rows are tried at once: one for each kind of mask, or more, to fill batches of a fixed size.
        lengths: the lengths that are tried, in tokens.
        fixed: whether no other length can be tried.
    """

    def __init__(self, graph: ir.Graph) -> None:
        self._graph = graph
        batch, length = (_fixed(graph, axis) for axis in (0, 1))
        self._batches = 1 if batch is None else -(-KINDS // batch)
        self.rows = KINDS if batch is None else self._batches * batch
        self.lengths = _LENGTHS if length is None else (length,)
        self.fixed = length is not None

    def masks(self, length: int) -> np.ndarray:
        """Masks of each kind, (rows, length) int64, with 0 for padding."""
        made = np.ones((KINDS, length), np.int64)
        made[1, length // 2 :] = 0
        made[2, : length // 3 + 1] = 0
        made[3, 1::2] = 0
        made[4] = 0
        return made[np.arange(self.rows) % KINDS]

    def feeds(self, length: int) -> Samples:
        """Zeros for each input of the graph that is (batch, sequence)."""
        found = {}
        for value in self._graph.inputs:
            if is_constant(value) or value.dtype is None or (value.shape is not None and len(value.shape) != 2):
                continue
            found[value] = np.zeros((self.rows, length), value.dtype.numpy())
        return found

    def evaluator(self, given: Samples) -> Evaluate:
        """Computes values of the graph.

        Args:
            given: what to take for some values, the rows along their first dimension.
        """
        opset = self._graph.opset_imports[""]
        parts = {value: np.split(array, self._batches) for value, array in given.items()}
        batches = [
            Evaluator(opset, {value: part[index] for value, part in parts.items()}) for index in range(self._batches)
        ]

        def evaluate(value: ir.Value) -> np.ndarray:
            by_row = len(batches) > 1 and any(each in given for each in ancestors(value))
            return np.concatenate([each(value) for each in batches]) if by_row else batches[0](value)

        return evaluate


def _fixed(graph: ir.Graph, axis: int) -> int | None:
    """The size that an axis has in every input that is (batch, sequence); ``None`` where any size will do, or none."""
    found = {
        value.shape[axis]
        for value in graph.inputs
        if not is_constant(value) and value.shape is not None and len(value.shape) == 2
    }
    sizes = {size for size in found if isinstance(size, int)}
    return max(sizes) or None if len(sizes) == 1 and len(found) == 1 else None
