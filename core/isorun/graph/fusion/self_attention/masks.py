"""Classification of the values that reach an attention's scores: key masks, biases, or neither.

A value is classified numerically. The subgraph that computes it, which contains only masks and shapes, is evaluated on
one batch with every kind of mask (none, right, left, holes, all) at several lengths:

- a **key mask** has one value wherever the key is attended to and another wherever it is masked, for every query and
  head. Its origin is a (batch, sequence) value: an input of the graph, or the first comparison of an input that is not
  a mask itself (``input_ids != pad``). It is inverted if its origin is nonzero at padding (PyTorch's
  ``src_key_padding_mask``);
- a **window** has these values for keys within a distance of the query only, and the masked one for all others; a
  **causal** mask for keys that are not after it. They may be a key mask at the same time, or not depend on any input;
- a **paired** mask is a key mask that masks every key for a query that is masked itself;
- a **mask of pairs** has a value for each query and key: its origin is a (batch, sequence, sequence) input, or a
  comparison of this shape, as of the segments of two tokens;
- a **guard** distinguishes fully masked rows from all others, and belongs to the mask;
- **no mask** is constant;
- a **bias** depends on lengths only, and is small and finite everywhere, like relative positions;
- **indices** are whole numbers that depend on lengths only, such as buckets of distances;
- a sum of these is split into its terms, and so is a choice between them (a bias where a key is attended to).

Everything else is rejected with an example: a mask that differs between heads, that counts, or that depends on
several inputs in another way than by comparisons of pairs. The lengths extend beyond twice every number in the
subgraph, so that a window of 64 is detected.
"""

from __future__ import annotations

from collections.abc import Callable, Set
from dataclasses import dataclass, replace
from itertools import product

import numpy as np
import onnx_ir as ir

from isorun.graph.analysis import numbers
from isorun.graph.analysis.evaluate import CannotEvaluate, Samples, ancestors, data_inputs, is_constant, sizes
from isorun.graph.analysis.places import changes as places_of_changes
from isorun.graph.fusion.self_attention.reach import EVERY_KEY, FINITE_MASK, Reach, is_within, reach_of_mask
from isorun.graph.io.nodes import needed
from isorun.graph.matching.probes import Evaluate, Probes
from isorun.graph.matching.report import CannotFuse
from isorun.graph.ops import functions

Around = Callable[[int, int], Samples]
"""Samples of the values around an attention, for a number of rows and a length."""

_MAX_LENGTH = 2048  # the longest mask that is evaluated
_SAME_FACTOR = 1e-3  # relative
_MAX_FACTOR = 2.0**16  # of scores: a greater one, or its inverse, is none of an attention
_MAX_BIAS = 5e3  # a larger value is meant to mask; ALiBi adds up to 1 for each token between two
_BOOLEAN = frozenset(("Equal", "Not", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "And", "Or", "Cast"))


@dataclass(frozen=True)
class KeyMask:
    """A mask over keys.

    Attributes:
        origin: the (B, S) value that it is computed from; nonzero for keys that are attended to, or for those that are
            not if it is inverted. ``None`` for a mask that depends on positions alone. That of a mask of pairs is
            (B, S, S) or (B, 1, S, S).
        masked: the number added to a masked key's score; ``None`` for a mask that is not added to scores.
        reach: which of these keys each query attends to.
        inverted: whether the origin is nonzero at padding.
    """

    origin: ir.Value | None
    masked: float | None
    reach: Reach = EVERY_KEY
    inverted: bool = False

    def of_origin(self, attend: np.ndarray) -> np.ndarray:
        """What its origin is for a mask (B, S) of 0 and 1."""
        origin, keys = needed(self.origin), attend != 0
        dtype = np.dtype(bool) if origin.dtype is None else origin.dtype.numpy()
        if self.reach.by_pair:
            keys = self.reach.pairs(attend)
            keys = keys if len(needed(origin.shape)) == keys.ndim else keys[:, None]
        return np.asarray(keys ^ self.inverted, dtype)


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
        origins = self._origins(value, inputs, around)
        by_pair = [KeyMask(origin, None, Reach(by_pair=True)) for origin in self._pair_origins(value, inputs, around)]
        by_key = [KeyMask(origin, None) for origin in origins]
        if any(self._compares(value, origin, around) for origin in origins):
            by_key, by_pair = by_pair, by_key
        for inverted, mask in (*product((False, True), by_key), *product((False, True), by_pair)):
            try:
                return [self._key_mask(value, replace(mask, inverted=inverted), around)]
            except (CannotFuse, CannotEvaluate) as why:
                reasons.append(str(why))
        node = value.producer()
        if node is not None and node.op_type in ("Add", "Where") and node.domain == "":
            return [term for operand in node.inputs if operand is not None for term in self.terms(operand, around)]
        names = ", ".join(sorted(repr(source.name) for source in inputs))
        raise CannotFuse(reasons[0] if reasons else f"{value.name!r} is not a key mask: it depends on {names}")

    def _by_length(self, value: ir.Value, around: Around) -> list[KeyMask | Bias]:
        """Classify a value that depends on lengths only."""
        lengths = self._probes.lengths
        results = [self._evaluator(around, length)(value) for length in lengths]
        for result, length in zip(results, lengths, strict=True):
            shape = result.shape
            is_by_key = len(shape) > 1 and shape[-1] == length and (len(shape) == 2 or shape[-2] in (1, length))
            if not is_by_key or result.dtype.kind in "iu":
                return []  # a number, a shape, an index, a table
        if not self._probes.fixed:
            results.append(self._evaluator(around, self._long_length(value, around))(value))
        first = results[0].flat[0]
        if all((result == first).all() for result in results) and first in (0, True):
            return []
        if any(result.dtype.kind != "f" or not np.abs(result).max() < _MAX_BIAS for result in results):
            pairs = [result if result.ndim > 2 else result[None, None] for result in results]
            reaches = [reach_of_mask(result, np.ones((1, result.shape[-1]), bool)) for result in pairs]
            if reaches[-1] is not None:
                reach, masked = reaches[-1]
                if all(reach_of is None or is_within(reach_of[0], reach) for reach_of in reaches):
                    return [KeyMask(None, masked if results[-1].dtype.kind == "f" else None, reach)]
            raise CannotFuse(
                f"{value.name!r} masks by position, and is no window or causal mask: {_example(results[0])}"
            )
        return [Bias(value)]

    def _origins(self, value: ir.Value, inputs: Set[ir.Value], around: Around) -> list[ir.Value]:
        """The possible origins of a mask: an input that is not an index, or (B, S) booleans computed from one."""
        origins = []
        if len(inputs) == 1:
            (only,) = inputs
            if not _is_index(only) and (only.shape is None or len(only.shape) == 2):
                origins.append(only)
        length = self._probes.lengths[0]
        evaluate = self._evaluator(around, length)
        for ancestor in reversed(ancestors(value)):
            node = ancestor.producer()
            if node is None or is_constant(ancestor) or node.op_type not in _BOOLEAN or not data_inputs(ancestor):
                continue
            result = evaluate(ancestor)
            is_alone = not data_inputs(value, frozenset((ancestor,)))
            if result.dtype == np.bool_ and result.shape == (self._probes.rows, length) and is_alone:
                origins.append(ancestor)
        return origins

    def _pair_origins(self, value: ir.Value, inputs: Set[ir.Value], around: Around) -> list[ir.Value]:
        """The possible origins of a mask of pairs: an input, or comparisons and their products, of (B, S, S) or
        (B, 1, S, S), that all of its inputs are read by."""
        length = self._probes.lengths[0]
        shapes = [(self._probes.rows, *axes, length, length) for axes in ((), (1,))]
        evaluate = self._evaluator(around, length)
        origins = []
        for ancestor in reversed(ancestors(value)):
            node = ancestor.producer()
            if is_constant(ancestor) or ancestor.shape is None or len(ancestor.shape) not in (3, 4):
                continue
            is_product = node is not None and node.op_type == "Mul" and not any(map(is_constant, node.inputs))
            if ancestor not in inputs and not is_product and (node is None or node.op_type not in _BOOLEAN):
                continue
            is_alone = not data_inputs(value, frozenset((ancestor,)))
            if is_alone and ancestor.dtype is not None and evaluate(ancestor).shape in shapes:
                origins.append(ancestor)
        return origins

    def _compares(self, value: ir.Value, origin: ir.Value, around: Around) -> bool:
        """Whether a value compares the numbers of two tokens: their segments."""
        length = self._probes.lengths[0]
        numbers = KeyMask(origin, None).of_origin(self._probes.masks(length))
        if numbers.dtype.kind not in "iuf":
            return False
        segments = numbers * (1 + np.arange(length, dtype=numbers.dtype) % 2)
        try:
            results = [self._evaluator(around, length, {origin: sample})(value) for sample in (numbers, segments)]
        except CannotEvaluate:
            return False
        products = segments[:, :, None] * segments[:, None, :]  # 2 for two segments
        differs = results[0] != results[1]
        return differs.size == products.size and np.array_equal(differs.reshape(products.shape), products == 2)

    def _key_mask(self, value: ir.Value, supposed: KeyMask, around: Around) -> KeyMask:
        """A value as a mask of a supposed origin.

        Raises:
            CannotFuse: it is none.
        """
        source = needed(supposed.origin)
        attended: set[float] = set()
        masked: set[float] = set()
        floating = False
        reaches: dict[int, Reach] = {}
        rows = self._probes.rows
        origin = frozenset((source,))
        lengths = self._probes.lengths
        lengths = lengths if self._probes.fixed else (*lengths, self._long_length(value, around, origin))
        for length in lengths:
            masks = self._probes.masks(length)
            result = self._evaluator(around, length, {source: supposed.of_origin(masks)})(value)
            if result.shape[:1] == (rows,) and result.size == rows:
                self._check_guard(value, supposed, around)
                return supposed
            if result.ndim not in (2, 4) or result.shape[0] != rows or result.shape[-1] != length:
                raise CannotFuse(f"{value.name!r} is not a key mask: shape {result.shape} for a mask of {masks.shape}")
            floating = result.dtype.kind == "f"
            measured = reach_of_mask(result, masks != 0, supposed.reach)
            if measured is None:
                raise CannotFuse(f"{value.name!r} is not a key mask: {_counterexample(result, masks)}")
            reaches[length], lowered = measured
            masked.add(lowered)
            attended.add(float(result.reshape(-1)[_attended_at(masks, result.shape)]))
        reach = reaches[lengths[-1]]
        if len(attended) != 1 or len(masked) != 1 or not all(is_within(reached, reach) for reached in reaches.values()):
            raise CannotFuse(f"{value.name!r} is not a key mask: it differs between lengths")
        return replace(supposed, masked=masked.pop() if floating else None, reach=reach)

    def _evaluator(self, around: Around, length: int, samples: Samples | None = None) -> Evaluate:
        return self._probes.evaluator(
            {**self._probes.feeds(length), **around(self._probes.rows, length), **(samples or {})}
        )

    def _check_guard(self, value: ir.Value, supposed: KeyMask, around: Around) -> None:
        """Check that a value with a number for each row distinguishes fully masked rows from all others. Its effect is
        tested on the attention as a whole.

        Raises:
            CannotFuse: it does not.
        """
        source, length = needed(supposed.origin), self._probes.lengths[-1]
        if not self._probes.fixed:
            length = self._long_length(value, around, frozenset((source,)))
        near = {number + step for number in numbers.whole([value]) for step in (-1, 0, 1)}
        counts = np.array(sorted({1, 2, 3, length} | {count for count in near if 0 < count <= length}))
        some: set[float] = set()
        for first in range(0, len(counts), self._probes.rows - 1):
            part = counts[first : first + self._probes.rows - 1]
            part = np.append(part, [0] * (self._probes.rows - len(part)))
            mask = (np.arange(length) < part[:, None]).astype(np.int64)
            result = self._evaluator(around, length, {source: supposed.of_origin(mask)})(value).reshape(-1)
            some.update(result[part > 0].tolist())
            if len(some) != 1 or result[-1] in some:
                raise CannotFuse(f"{value.name!r} is not a key mask: it is {result.tolist()} for {part.tolist()} keys")

    def _long_length(self, value: ir.Value, around: Around, stop: frozenset[ir.Value] = frozenset()) -> int:
        """A length above twice every number in a value's computation, and every place at which what it reads of
        lengths changes, within the tables that it slices.

        Raises:
            CannotFuse: it compares places with a number beyond the longest mask that is evaluated.
        """
        shortest = max(self._probes.lengths)
        shapes = [sizes(constant) for constant in filter(is_constant, ancestors(value, stop))]
        limits = [max(shape) for shape in shapes if len(shape) >= 2 and max(shape) > shortest]
        longest = min([_MAX_LENGTH, *limits])
        places = numbers.whole([value], stop) | places_of_changes(
            value, stop, lambda read, length: self._evaluator(around, length)(read), longest
        )
        lengths = [2 * place + 2 for place in places if place <= _MAX_LENGTH]
        length = min(max([shortest + 1, *lengths]), longest)
        unseen = [number for number in numbers.compared([value], stop) if number + 2 > length]
        if unseen and length == _MAX_LENGTH:
            raise CannotFuse(
                f"{value.name!r} compares places in a row with {max(unseen)}, and is tried on rows of {length} at most"
            )
        return length


def require_masking(mask: KeyMask, scores: np.ndarray, attend: np.ndarray) -> float:
    """Check that a mask does to scores what it is fused as.

    Args:
        mask: is fused.
        scores: what the Softmax reads on a sample, whose scores are small.
        attend: the sample's mask, (B, S).

    Returns:
        What scores are multiplied by after the mask is added: a power of 2. Added afterwards, its product with that
        rounds scores in the same steps.

    Raises:
        CannotFuse: what the mask puts in the place of scores may be above one, or what it adds is scaled afterwards
            in a way that changes results.
    """
    if scores.shape[-2:] != attend.shape[1:] * 2:  # no scores of queries and keys: not what is fused
        return 1.0
    scores = scores.reshape(len(attend), -1, *scores.shape[-2:])
    is_masked = np.broadcast_to(~mask.reach.pairs(attend)[:, None], scores.shape)
    masked, others = scores[is_masked], scores[~is_masked]
    if not masked.size:
        return 1.0
    highest, range_of_scores = float(masked.max()), 1 + np.ptp(others)
    if masked[0] > functions.MASKING:
        if mask.masked is None and (masked == masked[0]).all():
            raise CannotFuse(f"its mask puts {masked[0]:g} in the place of scores, which may be lower")
        if mask.masked is not None and abs(np.median(masked) - mask.masked) > range_of_scores:
            raise CannotFuse(
                f"its mask of {mask.masked:g} is scaled with the scores, and lowers them by {-masked[0]:.3g}"
            )
    if mask.masked is None or mask.masked <= FINITE_MASK or abs(highest - mask.masked) <= range_of_scores:
        return 1.0
    factor = highest / mask.masked if mask.masked else 0.0
    power = float(2.0 ** np.round(np.log2(factor))) if 1 / _MAX_FACTOR < factor < _MAX_FACTOR else 1.0
    if abs(factor / power - 1) > _SAME_FACTOR:
        raise CannotFuse(
            f"its mask of {mask.masked:g} is added before scores are multiplied by {factor:.3g}, which rounds those of "
            "a fully masked row in another way than after it"
        )
    return power


def _is_index(value: ir.Value) -> bool:
    """Whether a value selects rows of a table, as token ids do."""
    for use in value.uses():
        node = use.node
        if node.op_type == "Gather" and use.idx == 1 and is_constant(node.inputs[0]):
            return True
        if node.op_type in ("Cast", "Clip", "Identity") and use.idx == 0 and _is_index(node.outputs[0]):
            return True
        if functions.is_fused(node, *functions.EMBEDDINGS) and use.idx in dict(functions.TABLES.ids):
            return True
    return False


def _attended_at(masks: np.ndarray, shape: tuple[int, ...]) -> int:
    """The index, among all elements of a mask of a shape, of one that is attended to."""
    row = int(masks.sum(1).argmax())
    return int(np.ravel_multi_index((row, *(0 for _ in shape[1:-1]), int(masks[row].argmax())), shape))


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
