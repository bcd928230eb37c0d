"""Classification of the values that reach an attention's scores: key masks, biases, or neither.

A value is classified numerically. The subgraph that computes it, which contains only masks and shapes, is evaluated on
one batch with every kind of mask (none, right, left, holes, all) at several lengths:

- a **key mask** has one value wherever the key is attended to and another wherever it is masked, for every query and
  head. Its origin is a (batch, sequence) value: an input of the graph, or the first comparison of an input that is not
  a mask itself (``input_ids != pad``);
- a **guard** distinguishes fully masked rows from all others, and belongs to the mask;
- **no mask** is constant;
- a **bias** depends on lengths only, and is small and finite everywhere, like relative positions;
- a sum of these is split into its terms.

Everything else is rejected with an example: a mask that differs between queries (causal, a window, a four-dimensional
mask), that depends on several inputs, or that counts.

The lengths extend beyond twice every number in the subgraph, so that a window of 64 is detected.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from isorun.graph.analysis.evaluate import CannotEvaluate, Samples, ancestors, array, data_inputs, is_constant, sizes
from isorun.graph.matching.probes import Evaluate, Probes
from isorun.graph.matching.report import CannotFuse
from isorun.graph.ops import functions

Around = Callable[[int, int], Samples]
"""Samples of the values around an attention, for a number of rows and a length."""

_MAX_LENGTH = 2048  # the longest mask that is evaluated
_MAX_BIAS = 5e3  # a larger value is meant to mask; ALiBi adds up to 1 for each token between two
_BOOLEAN = frozenset(("Equal", "Not", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "And", "Or", "Cast"))


@dataclass(frozen=True)
class KeyMask:
    """A mask over keys.

    Attributes:
        origin: the (B, S) value that it is computed from; nonzero for keys that are attended to.
        masked: the number added to a masked key's score; ``None`` for a mask that is not added to scores.
    """

    origin: ir.Value
    masked: float | None


@dataclass(frozen=True)
class Bias:
    """A value (1 or B, 1 or N, S, S) that depends on lengths only and is added to the scores."""

    value: ir.Value


class MaskClassifier:
    """Classifies values. Results are cached, since the layers of an encoder share them."""

    def __init__(self, probes: Probes) -> None:
        self._probes = probes
        self._known: dict[ir.Value, list[KeyMask | Bias] | str] = {}

    def terms(self, value: ir.Value, around: Around) -> list[KeyMask | Bias]:
        """The terms of a value as a sum; empty for a number, a shape, or a mask that never masks.

        Args:
            value: a value that reaches the scores.
            around: returns samples of the values around the attention.

        Raises:
            CannotFuse: it is neither a key mask nor a bias, or cannot be evaluated.
        """
        if value not in self._known:
            try:
                self._known[value] = self._classify(value, around)
            except CannotFuse as why:
                self._known[value] = str(why)
            except CannotEvaluate as why:
                self._known[value] = f"its mask or bias {value.name!r} cannot be evaluated: {why}"
        known = self._known[value]
        if isinstance(known, str):
            raise CannotFuse(known)
        return known

    def _classify(self, value: ir.Value, around: Around) -> list[KeyMask | Bias]:
        inputs = data_inputs(value)
        if not inputs:
            return self._by_length(value, around)
        reasons = []
        for origin in self._origins(value, inputs, around):
            try:
                return [self._key_mask(value, origin, around)]
            except (CannotFuse, CannotEvaluate) as why:
                reasons.append(str(why))
        node = value.producer()
        if node is not None and node.op_type == "Add" and node.domain == "":
            return [term for operand in node.inputs if operand is not None for term in self.terms(operand, around)]
        names = ", ".join(sorted(repr(source.name) for source in inputs))
        raise CannotFuse(reasons[0] if reasons else f"{value.name!r} is not a key mask: it depends on {names}")

    def _by_length(self, value: ir.Value, around: Around) -> list[KeyMask | Bias]:
        """Classify a value that depends on lengths only."""
        results = [self._evaluator(around, length)(value) for length in self._probes.lengths]
        if any(result.size <= 1 or result.ndim < 2 for result in results):
            return []
        if not self._probes.fixed:
            results.append(self._evaluator(around, self._long_length(value))(value))
        first = results[0].flat[0]
        if all((result == first).all() for result in results) and first in (0, True):
            return []
        if any(result.dtype.kind != "f" or not np.abs(result).max() < _MAX_BIAS for result in results):
            raise CannotFuse(f"{value.name!r} masks by position (a causal mask or a window): {_example(results[0])}")
        return [Bias(value)]

    def _origins(self, value: ir.Value, inputs: set[ir.Value], around: Around) -> list[ir.Value]:
        """The possible origins of a mask: an input that is not an index, or (B, S) booleans computed from one."""
        origins = []
        if len(inputs) == 1:
            (only,) = inputs
            if not _table_rows(only) and (only.shape is None or len(only.shape) == 2):
                origins.append(only)
        length = self._probes.lengths[0]
        evaluate = self._evaluator(around, length)
        for ancestor in reversed(ancestors(value)):
            node = ancestor.producer()
            if node is None or is_constant(ancestor) or node.op_type not in _BOOLEAN or not data_inputs(ancestor):
                continue
            result = evaluate(ancestor)
            others = (other for other in ancestors(value, frozenset((ancestor,))) if other is not ancestor)
            alone = all(is_constant(other) or other.producer() is not None for other in others)
            if result.dtype == np.bool_ and result.shape == (self._probes.rows, length) and alone:
                origins.append(ancestor)
        return origins

    def _key_mask(self, value: ir.Value, origin: ir.Value, around: Around) -> KeyMask:
        attended: set[float] = set()
        masked: set[float] = set()
        floating = False
        rows = self._probes.rows
        lengths = self._probes.lengths if self._probes.fixed else (*self._probes.lengths, self._long_length(value))
        for length in lengths:
            masks = self._probes.masks(length)
            dtype = np.dtype(bool) if origin.dtype is None else origin.dtype.numpy()
            result = self._evaluator(around, length, {origin: masks.astype(dtype)})(value)
            if result.shape[:1] == (rows,) and result.size == rows:
                return self._guard(value, origin, result.reshape(rows), masks)
            if result.ndim not in (2, 4) or result.shape[0] != rows or result.shape[-1] != length:
                raise CannotFuse(f"{value.name!r} is not a key mask: shape {result.shape} for a mask of {masks.shape}")
            attend = np.broadcast_to((masks if result.ndim == 2 else masks[:, None, None, :]) != 0, result.shape)
            attended |= {float(number) for number in np.unique(result[attend])}
            masked |= {float(number) for number in np.unique(result[~attend])}
            floating = result.dtype.kind == "f"
            inverted = floating and min(attended) < max(masked)
            if len(attended) != 1 or len(masked) != 1 or attended == masked or inverted:
                raise CannotFuse(f"{value.name!r} is not a key mask: {_counterexample(result, masks)}")
        return KeyMask(origin, masked.pop() if floating else None)

    def _evaluator(self, around: Around, length: int, samples: Samples | None = None) -> Evaluate:
        return self._probes.evaluator(
            {**self._probes.feeds(length), **around(self._probes.rows, length), **(samples or {})}
        )

    def _guard(self, value: ir.Value, origin: ir.Value, result: np.ndarray, masks: np.ndarray) -> KeyMask:
        """A value that distinguishes fully masked rows. Its effect is tested on the attention as a whole."""
        some = masks.any(axis=1)
        if len(np.unique(result[some])) != 1 or result[some][0] in result[~some]:
            raise CannotFuse(f"{value.name!r} is not a key mask: it is {result.tolist()} for rows with different masks")
        return KeyMask(origin, None)

    def _long_length(self, value: ir.Value) -> int:
        """A length above twice every whole number in a value's computation, within the tables that it slices."""
        shortest = max(self._probes.lengths)
        length, limits = shortest + 1, [_MAX_LENGTH]
        for constant in filter(is_constant, ancestors(value)):
            shape = sizes(constant)
            if len(shape) >= 2 and max(shape) > shortest:
                limits.append(max(shape))
            if np.prod(shape) <= 64:
                for number in array(constant).reshape(-1).tolist():
                    if isinstance(number, int | float) and abs(number) <= _MAX_LENGTH:
                        length = max(length, 2 * int(abs(number)) + 2)
        return min(length, *limits)


def ids(graph: ir.Graph) -> ir.Value | None:
    """The input with token ids: of the inputs that index a table, the one of the longest table."""
    candidates = [
        (rows, value)
        for value in graph.inputs
        if (rows := _table_rows(value)) and value.shape is not None and len(value.shape) == 2
    ]
    return max(candidates, key=lambda candidate: candidate[0])[1] if candidates else None


def _table_rows(value: ir.Value) -> int:
    """The rows of the longest table that a value indexes, as token ids do; 0 if it indexes none."""
    longest = 0
    for use in value.uses():
        node = use.node
        if node.op_type == "Gather" and use.idx == 1 and is_constant(node.inputs[0]):
            longest = max(longest, sizes(node.inputs[0])[0])  # type: ignore[arg-type]  # a constant is a value
        elif node.op_type in ("Cast", "Clip", "Identity") and use.idx == 0:
            longest = max(longest, _table_rows(node.outputs[0]))
        elif functions.is_fused(node) and node.op_type == functions.EMBEDDING:
            tables = [table for index, table in functions.TABLES.ids if index == use.idx]
            longest = max(
                [longest, *(sizes(table)[0] for index in tables if (table := node.inputs[index]) is not None)]
            )
    return longest


def _example(result: np.ndarray) -> str:
    pairs = result.reshape(-1, *result.shape[-2:])[0]
    query, key = np.unravel_index(int(np.argmin(pairs)), pairs.shape)
    return f"for query {query} and key {key} it is {pairs[query, key]}"


def _counterexample(result: np.ndarray, masks: np.ndarray) -> str:
    """An example that distinguishes a value from a key mask."""
    for mask, values in zip(masks, result, strict=True):
        queries = values.reshape(-1, result.shape[-1])
        for key in range(result.shape[-1]):
            if len(np.unique(queries[:, key])) > 1:
                return f"for the mask {mask.tolist()} key {key} is masked for some queries and not for others"
    return f"it is {sorted({float(number) for number in np.unique(result)})[:4]} for masks of 0 and 1"
