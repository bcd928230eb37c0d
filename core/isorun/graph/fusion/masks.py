"""What a value that reaches an attention's scores means: a mask over keys, a bias, or neither.

A value is judged by what it computes. The part of the graph that it depends on, which holds nothing but masks and
shapes, is run on one batch of every kind of mask (none, right, left, holes, all) in several lengths:

- **a mask over keys** has one value wherever the key is attended to and another wherever it is not, for every
  query and head alike. It is then named by the (batch, sequence) value that it comes from: an input of the graph,
  or the first comparison after one that is not a mask itself (``input_ids != pad``);
- a **guard** tells rows without any key from all others, and belongs to the mask;
- **no mask** is the same everywhere;
- **a bias** depends on lengths alone and is small and finite everywhere, as relative positions are;
- a sum of these is taken apart.

Everything else is refused with an example of what it does: a mask that differs from query to query (causal,
a window, a mask of four dimensions), one that depends on several inputs, or one that counts.

The lengths reach beyond twice every number that the sub-graph holds, so that a window of 64 is seen as one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from isorun.graph.analysis.evaluate import CannotEvaluate, Samples, ancestors, array, data_inputs, is_constant, sizes
from isorun.graph.matching.probes import Evaluate, Trials
from isorun.graph.matching.report import Refused
from isorun.graph.ops import functions

Around = Callable[[int, int], Samples]

_MOST = 2048  # the longest mask that is tried
_MODERATE = 1e3  # a bias above this is meant to mask
_FALSE_OR_TRUE = frozenset(("Equal", "Not", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "And", "Or", "Cast"))


@dataclass(frozen=True)
class KeyMask:
    """A mask over keys.

    Attributes:
        origin: the (B, S) value that it comes from; not 0 where a key is attended to.
        masked: what a masked key's score is lowered by, where the value may be added to scores; else ``None``.
    """

    origin: ir.Value
    masked: float | None


@dataclass(frozen=True)
class Bias:
    """A value (1 or B, 1 or N, S, S) that depends on lengths alone and is added to the scores."""

    value: ir.Value


class Judge:
    """Tells what values mean, and remembers it: the layers of an encoder share them."""

    def __init__(self, trials: Trials) -> None:
        self._trials = trials
        self._known: dict[ir.Value, list[KeyMask | Bias] | str] = {}

    def terms(self, value: ir.Value, around: Around) -> list[KeyMask | Bias]:
        """What a value is the sum of; nothing, where it is a number, a shape, or a mask that never masks.

        Args:
            value: what reaches the scores.
            around: gives, for a number of rows and a length, samples of the values around the attention.

        Raises:
            Refused: it is something else, or cannot be told.
        """
        if value not in self._known:
            try:
                self._known[value] = self._judge(value, around)
            except Refused as why:
                self._known[value] = str(why)
            except CannotEvaluate as why:
                self._known[value] = f"{value.name!r}, which it adds or masks by, cannot be told: {why}"
        known = self._known[value]
        if isinstance(known, str):
            raise Refused(known)
        return known

    def _judge(self, value: ir.Value, around: Around) -> list[KeyMask | Bias]:
        inputs = data_inputs(value)
        if not inputs:
            return self._by_lengths(value, around)
        reasons = []
        for origin in self._origins(value, inputs, around):
            try:
                return [self._key_mask(value, origin, around)]
            except (Refused, CannotEvaluate) as why:
                reasons.append(str(why))
        node = value.producer()
        if node is not None and node.op_type == "Add" and node.domain == "":
            return [term for each in node.inputs if each is not None for term in self.terms(each, around)]
        names = ", ".join(sorted(repr(each.name) for each in inputs))
        raise Refused(reasons[0] if reasons else f"{value.name!r} is no mask over keys: it depends on {names}")

    def _by_lengths(self, value: ir.Value, around: Around) -> list[KeyMask | Bias]:
        seen = [self._given(around, length)(value) for length in self._trials.lengths]
        if any(each.size <= 1 or each.ndim < 2 for each in seen):
            return []
        if not self._trials.fixed:
            seen.append(self._given(around, self._beyond(value))(value))
        if all((each == seen[0].flat[0]).all() for each in seen) and (seen[0].flat[0] in (0, True)):
            return []
        if any(each.dtype.kind != "f" or not np.abs(each).max() < _MODERATE for each in seen):
            raise Refused(f"{value.name!r} masks by position (a causal mask, or a window): {_example(seen[0])}")
        return [Bias(value)]

    def _origins(self, value: ir.Value, inputs: set[ir.Value], around: Around) -> list[ir.Value]:
        """Where a mask may come from: an input that indexes nothing, or (B, S) booleans that come after one."""
        found = []
        if len(inputs) == 1:
            (only,) = inputs
            if not _rows(only) and (only.shape is None or len(only.shape) == 2):
                found.append(only)
        length = self._trials.lengths[0]
        given = self._given(around, length)
        for each in reversed(ancestors(value)):
            node = each.producer()
            if node is None or is_constant(each) or node.op_type not in _FALSE_OR_TRUE or not data_inputs(each):
                continue
            seen = given(each)
            alone = not any(not is_constant(left) and left.producer() is None for left in _past(value, each))
            if seen.dtype == np.bool_ and seen.shape == (self._trials.rows, length) and alone:
                found.append(each)
        return found

    def _key_mask(self, value: ir.Value, origin: ir.Value, around: Around) -> KeyMask:
        attended: set[float] = set()
        masked: set[float] = set()
        floating = False
        rows = self._trials.rows
        lengths = self._trials.lengths if self._trials.fixed else (*self._trials.lengths, self._beyond(value))
        for length in lengths:
            given = self._trials.masks(length)
            kind = np.dtype(bool) if origin.dtype is None else origin.dtype.numpy()
            seen = self._given(around, length, {origin: given.astype(kind)})(value)
            if seen.shape[:1] == (rows,) and seen.size == rows:
                return self._guard(value, origin, seen.reshape(rows), given)
            if seen.ndim not in (2, 4) or seen.shape[0] != rows or seen.shape[-1] != length:
                raise Refused(f"{value.name!r} is no mask over keys: it is {seen.shape} for a mask of {given.shape}")
            spread = given if seen.ndim == 2 else given[:, None, None, :]
            attend = np.broadcast_to(spread != 0, seen.shape)
            attended |= {float(each) for each in np.unique(seen[attend])}
            masked |= {float(each) for each in np.unique(seen[~attend])}
            floating = seen.dtype.kind == "f"
            backwards = floating and min(attended) < max(masked)
            if len(attended) != 1 or len(masked) != 1 or attended == masked or backwards:
                raise Refused(f"{value.name!r} is no mask over keys: {_against(seen, given)}")
        return KeyMask(origin, masked.pop() if floating else None)

    def _given(self, around: Around, length: int, more: Samples | None = None) -> Evaluate:
        return self._trials.evaluator(
            {**self._trials.feeds(length), **around(self._trials.rows, length), **(more or {})}
        )

    def _guard(self, value: ir.Value, origin: ir.Value, seen: np.ndarray, given: np.ndarray) -> KeyMask:
        """What tells rows without any key from all others. What is made of it is seen on the attention as a whole."""
        some = given.any(axis=1)
        if len(np.unique(seen[some])) != 1 or seen[some][0] in seen[~some]:
            raise Refused(f"{value.name!r} is no mask over keys: it gives {seen.tolist()} for rows with other masks")
        return KeyMask(origin, None)

    def _beyond(self, value: ir.Value) -> int:
        """A length above every whole number that a value's computation holds."""
        most = max(self._trials.lengths) + 1
        for each in ancestors(value):
            if is_constant(each) and each.const_value is not None and each.const_value.size <= 64:
                for number in array(each).reshape(-1).tolist():
                    if isinstance(number, int | float) and abs(number) <= _MOST:
                        most = max(most, 2 * int(abs(number)) + 2)
        return self._within_tables(value, min(most, _MOST))

    def _within_tables(self, value: ir.Value, length: int) -> int:
        """No longer than the tables that the computation takes slices of."""
        tables = [sizes(each) for each in ancestors(value) if is_constant(each)]
        longest = [max(shape) for shape in tables if len(shape) >= 2]
        return min([length, *(size for size in longest if size > max(self._trials.lengths))])


def ids(graph: ir.Graph) -> ir.Value | None:
    """The input of the graph that holds token ids: of those that pick rows of a table, the one of the longest."""
    found = [
        (rows, value)
        for value in graph.inputs
        if (rows := _rows(value)) and value.shape is not None and len(value.shape) == 2
    ]
    return max(found, key=lambda each: each[0])[1] if found else None


def _rows(value: ir.Value) -> int:
    """The rows of the longest table that a value picks from, as token ids do; 0 where it picks from none."""
    most = 0
    for use in value.uses():
        node = use.node
        if node.op_type == "Gather" and use.idx == 1 and is_constant(node.inputs[0]):
            most = max(most, sizes(node.inputs[0])[0])  # type: ignore[arg-type]  # a constant is a value
        elif node.op_type in ("Cast", "Clip", "Identity") and use.idx == 0:
            most = max(most, _rows(node.outputs[0]))
        elif functions.is_fused(node) and node.op_type == functions.EMBEDDING:
            tables = [table for at, table in functions.TABLES.ids if at == use.idx]
            most = max([most, *(sizes(table)[0] for at in tables if (table := node.inputs[at]) is not None)])
    return most


def _past(value: ir.Value, cut: ir.Value) -> dict[ir.Value, None]:
    """What a value depends on besides what it depends on through ``cut``."""
    return {each: None for each in ancestors(value, frozenset((cut,))) if each is not cut}


def _example(seen: np.ndarray) -> str:
    pairs = seen.reshape(-1, *seen.shape[-2:])[0]
    query, key = np.unravel_index(int(np.argmin(pairs)), pairs.shape)
    return f"for query {query} and key {key} it is {pairs[query, key]}"


def _against(seen: np.ndarray, given: np.ndarray) -> str:
    """An example that tells a value from a mask over keys."""
    for row in range(len(given)):
        queries = seen[row].reshape(-1, seen.shape[-1])
        for key in range(seen.shape[-1]):
            if len(np.unique(queries[:, key])) > 1:
                return f"for the mask {given[row].tolist()} key {key} is masked for some queries and not for others"
    return f"it gives {sorted({float(each) for each in np.unique(seen)})[:4]} for masks of 0 and 1"
