"""Self-attention: three projections of one value, a mask over keys, the heads, and what puts them together again.

Found by its ``Softmax`` or ``Attention`` node. What is fused is everything between the dense layers before it and
the dense layer after it. That part is run on samples, with every kind of mask, and compared with

    context = softmax(Q K^T / sqrt(d) + mask + bias) V

for every order of the three projections, so neither spelling nor layout matters. Matched:

- Q, K and V as three dense layers (they become one matrix product), with or without biases; or as fewer layers
  that give several of them, one behind the other, head by head, or taking turns
- masks over keys however they are computed (see ``masks.py``), or none; a bias beside it (relative positions)
- a row without any key giving the mean over all keys, zeros (PyTorch's guard), or what a finite mask value leaves
- batch and sequence as two dimensions, or as one around it (as TensorFlow's dense layers have them)

Refused: cross-attention; probabilities or projections that something else uses; causal and other masks that are
no mask over keys; another scale, a soft cap, or anything else that does not compute the formula.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import permutations

import numpy as np
import onnx_ir as ir

from isorun.graph.analysis.evaluate import HALVES, CannotEvaluate, Samples, ancestors, array, is_constant, sizes
from isorun.graph.fusion import masks
from isorun.graph.fusion.attention_pattern import Place, find
from isorun.graph.fusion.masks import Bias, Judge, KeyMask
from isorun.graph.matching import subgraph
from isorun.graph.matching.probes import Evaluate, Trials
from isorun.graph.matching.report import FusionReport, Refused
from isorun.graph.matching.subgraph import Dense
from isorun.graph.ops import functions, positions

KIND = functions.ATTENTION
_TOLERANCE = 1e-4
_TOLERANCE_OF_HALVES = 5e-3  # a scale of 16 bits has three digits
_BUCKETS = 4  # the fewest that a bias by distance has
_FAR = 300  # a length at which every bucket of distances shows
_FINITE_MASK = -1e30  # a mask value above this leaves the scores of a row without any key apart


@dataclass(frozen=True)
class _Meaning:
    """What an attention computes: its attributes, where Q, K and V come from, and whether a fully masked row gives
    zeros."""

    heads: int
    filter_value: float
    projections: tuple[_Projection, ...]
    guarded: bool


@dataclass(frozen=True)
class _Projection:
    """A part of a dense layer's columns, or all of them: what gives queries, keys or values.

    A layer with ``count`` projections has them one behind the other (``blocks``), head by head (``heads``), or one
    column of each in turn (``turns``).
    """

    layer: Dense
    index: int
    count: int
    layout: str

    def of(self, array: np.ndarray, heads: int) -> np.ndarray:
        """The projection's share of an array whose last dimension is the layer's columns."""
        if self.count == 1:
            return array
        *before, columns = array.shape
        if self.layout == "blocks":
            part = array.reshape(*before, self.count, -1)[..., self.index, :]
        elif self.layout == "heads":
            part = array.reshape(*before, heads, self.count, -1)[..., self.index, :]
        else:
            part = array.reshape(*before, -1, self.count)[..., self.index]
        return part.reshape(*before, columns // self.count)


def fuse(model: ir.Model, report: FusionReport) -> None:
    """Fuse every self-attention of a normalized model, in place."""
    fusion = _Fusion(model)
    for node in list(model.graph):
        if node.domain == "" and node.op_type in ("Softmax", "Attention") and node.graph is not None:
            try:
                fusion.fuse(node)
            except (Refused, CannotEvaluate) as why:
                report.refuse(KIND, node.name, str(why))
            else:
                report.accept(KIND)


class _Fusion:
    def __init__(self, model: ir.Model) -> None:
        self._graph = model.graph
        self._trials = Trials(model.graph)
        self._judge = Judge(self._trials)
        self._weights: dict[tuple[object, ...], ir.Value] = {}
        self._masks: dict[ir.Value | None, ir.Value] = {}
        self._biases: dict[ir.Value, ir.Value] = {}

    def fuse(self, root: ir.Node) -> None:
        place = find(root)
        mask, bias = self._mask_and_bias(place)
        meaning = self._meaning(place, mask, bias)
        bias = self._relative(place, bias) if bias is not None else None
        self._rewrite(place, meaning, mask, bias)

    def _mask_and_bias(self, place: Place) -> tuple[KeyMask | None, ir.Value | None]:
        key_masks: dict[ir.Value, KeyMask] = {}
        biases: dict[ir.Value, Bias] = {}
        for side in place.sides:
            for term in self._judge.terms(side, place.around):
                if isinstance(term, KeyMask):
                    if term.masked is not None or term.origin not in key_masks:
                        key_masks[term.origin] = term
                else:
                    biases[term.value] = term
        for what, found in (("masks", key_masks), ("biases", biases)):
            if len(found) > 1:
                raise Refused(f"it has {len(found)} {what}: {', '.join(sorted(repr(each.name) for each in found))}")
        return next(iter(key_masks.values()), None), next(iter(biases), None)

    def _meaning(self, place: Place, mask: KeyMask | None, bias: ir.Value | None) -> _Meaning:
        """What the sub-graph computes, seen on samples.

        Raises:
            Refused: not the formula.
        """
        finite = mask is not None and mask.masked is not None and mask.masked > _FINITE_MASK
        filter_value = mask.masked if mask is not None and mask.masked is not None and finite else functions.LOWEST
        candidates = _candidates(place)
        fallbacks = {"scores"} if mask is None else {"scores", "zeros"}
        heads = 0
        half = subgraph.dtype(place.layers[0].weight) in HALVES
        tolerance = _TOLERANCE_OF_HALVES if half else _TOLERANCE
        for length in self._trials.lengths:
            sample, attend = self._sample(place, mask, length)
            evaluate = self._trials.evaluator(sample)
            rows = (self._trials.rows, length, -1)
            context = evaluate(place.context)
            heads = _heads(place, evaluate, self._trials.rows, length)
            if place.width % heads or context.size != self._trials.rows * length * place.width:
                raise Refused(f"its {heads} heads give {context.shape} for projections {place.width} wide")
            context = context.reshape(rows)
            offset = np.zeros(()) if bias is None else evaluate(bias)[:1]
            answers = {
                each: _attention(
                    [part.of(sample[part.layer.output], heads).reshape(rows) for part in each],
                    heads,
                    attend,
                    offset,
                    filter_value,
                )
                for each in candidates
            }
            some = attend.any(axis=1)
            errors = {each: _error(answer[some], context[some]) for each, answer in answers.items()}
            candidates = [each for each, error in errors.items() if error < tolerance]
            if not candidates:
                raise Refused(
                    "it computes something else than softmax(Q K^T / sqrt(d) + mask) V: off by "
                    f"{min(errors.values()):.2g} on samples (another scale, a soft cap, a mask that is none over keys)"
                )
            if not some.all() and np.isfinite(context[~some]).all():
                empty = {"scores": answers[candidates[0]][~some], "zeros": np.zeros_like(context[~some])}
                fallbacks = {each for each in fallbacks if _error(empty[each], context[~some]) < tolerance}
        if not fallbacks:
            raise Refused("a row without any key gives something that no fused operator gives")
        guarded = "scores" not in fallbacks
        return _Meaning(heads, filter_value, candidates[0], guarded)

    def _sample(self, place: Place, mask: KeyMask | None, length: int) -> tuple[Samples, np.ndarray]:
        """Values for what enters a place, and which keys each of its rows attends to."""
        random = np.random.default_rng(length)
        rows = self._trials.rows
        sample = {**self._trials.feeds(length), **place.around(rows, length)}
        for each in place.layers:
            sample[each.output] = random.normal(size=sample[each.output].shape).astype(np.float32)
        if mask is None:
            return sample, np.ones((rows, length), np.int64)
        kind = np.dtype(bool) if mask.origin.dtype is None else mask.origin.dtype.numpy()
        given = self._trials.masks(length)
        sample[mask.origin] = given.astype(kind)
        return sample, given

    def _rewrite(self, place: Place, meaning: _Meaning, mask: KeyMask | None, bias: ir.Value | None) -> None:
        before = place.context.producer()
        assert before is not None
        hidden = place.hidden
        key_mask = self._key_mask(None if mask is None else mask.origin, place, before)
        if place.flat:
            rows = subgraph.insert(before, "Shape", [key_mask])
            rest = self._number("isorun.rest", [-1])
            hidden = subgraph.insert(
                before, "Reshape", [hidden, subgraph.insert(before, "Concat", [rows, rest], axis=0)]
            )
        inputs = [hidden, key_mask, *self._qkv(meaning.projections, meaning.heads)]
        attributes = {"num_heads": meaning.heads, "mask_filter_value": meaning.filter_value}
        if meaning.guarded:
            attributes["guarded"] = 1
        subgraph.put(
            KIND,
            inputs if bias is None else [*inputs, bias],
            attributes,
            place.context,
            flat=place.width if place.flat else None,
        )

    def _relative(self, place: Place, bias: ir.Value) -> ir.Value:
        """A bias; in the one spelling that fused graphs have, where it goes by the distance of query and key."""
        if bias not in self._biases:
            self._biases[bias] = bias
            if self._trials.fixed:
                return bias
            tables = [each for each in ancestors(bias) if is_constant(each) and len(sizes(each)) == 2]
            ids, before = masks.ids(self._graph), place.context.producer()
            assert before is not None
            for table in tables:
                seen = {**self._trials.feeds(_FAR), **place.around(self._trials.rows, _FAR)}
                expected = positions.relative_bias_array(_FAR, array(table)) if sizes(table)[0] >= _BUCKETS else None
                if ids is not None and expected is not None:
                    found = self._trials.evaluator(seen)(bias)
                    if (found.shape[1:] == expected.shape[1:]) and (found == expected).all():
                        rows = subgraph.Before(before)
                        self._biases[bias] = positions.relative_bias(rows, ids, table, sizes(table)[0])
        return self._biases[bias]

    def _key_mask(self, origin: ir.Value | None, place: Place, before: ir.Node) -> ir.Value:
        """The mask as (B, S) int64; of ones, where the model has none."""
        if origin is not None and origin.dtype == ir.DataType.INT64:
            return origin
        if origin not in self._masks:
            if origin is None:
                shape = self._batch_and_length(place, before)
                self._masks[origin] = subgraph.insert(before, "Expand", [self._number("isorun.attend", 1), shape])
            else:
                made = origin
                if origin.dtype in (ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.DOUBLE):
                    made = subgraph.cast(before, made, ir.DataType.BOOL)
                self._masks[origin] = subgraph.cast(before, made, ir.DataType.INT64)
        return self._masks[origin]

    def _batch_and_length(self, place: Place, before: ir.Node) -> ir.Value:
        if not place.flat:
            return subgraph.insert(before, "Shape", [place.hidden], start=0, end=2)
        for value in self._graph.inputs:
            if value.shape is not None and len(value.shape) == 2:
                return subgraph.insert(before, "Shape", [value])
        raise Refused("it has no mask, and no input of the graph is (batch, sequence)")

    def _number(self, name: str, number: int | list[int]) -> ir.Value:
        return subgraph.constant(self._graph, name, ir.tensor(np.array(number, np.int64)))

    def _qkv(self, projections: tuple[_Projection, ...], heads: int) -> list[ir.Value]:
        """One weight (H, 3 H) and one bias (3 H); layers that share weights share these."""
        weights = [each.layer.weight for each in projections]
        biases = [each.layer.bias for each in projections]
        (rows, columns), name = sizes(weights[0]), weights[0].name
        width = columns // projections[0].count
        dtype = subgraph.dtype(weights[0])

        def weight() -> np.ndarray:
            return np.concatenate([each.of(array(each.layer.weight), heads) for each in projections], axis=1)

        def bias() -> np.ndarray:
            none = np.zeros(width, dtype.numpy())
            parts = [
                none if each.layer.bias is None else each.of(array(each.layer.bias), heads) for each in projections
            ]
            return np.concatenate(parts)

        how = tuple((each.index, each.layout) for each in projections)
        one = len(set(weights)) == 1 and how == tuple((index, "blocks") for index in range(3))
        together = (
            weights[0] if one else self._shared((*weights, how), f"{name}.qkv.weight", weight, dtype, (rows, 3 * width))
        )
        if one and biases[0] is not None:
            return [together, biases[0]]
        return [together, self._shared((*weights, *biases, how), f"{name}.qkv.bias", bias, dtype, (3 * width,))]

    def _shared(
        self,
        parts: tuple[object, ...],
        name: str,
        make: Callable[[], np.ndarray],
        dtype: ir.DataType,
        shape: tuple[int, ...],
    ) -> ir.Value:
        if parts not in self._weights:
            self._weights[parts] = subgraph.constant(self._graph, name, subgraph.lazy(make, dtype, shape))
        return self._weights[parts]


def _candidates(place: Place) -> list[tuple[_Projection, ...]]:
    """What may be Q, K and V, by every layout of layers with several and in every order."""
    counts = [sizes(layer.weight)[1] // place.width for layer in place.layers]
    return [
        order
        for layout in (("blocks",) if max(counts) == 1 else ("blocks", "heads", "turns"))
        for order in permutations(
            _Projection(layer, index, count, layout)
            for layer, count in zip(place.layers, counts, strict=True)
            for index in range(count)
        )
    ]


def _heads(place: Place, evaluate: Evaluate, rows: int, length: int) -> int:
    root = place.root
    if root.op_type == "Attention":
        if "q_num_heads" in root.attributes:
            return root.attributes["q_num_heads"].as_int()
        assert root.inputs[0] is not None
        return int(evaluate(root.inputs[0]).shape[1])
    probabilities = evaluate(root.outputs[0])
    heads, rest = divmod(probabilities.size, rows * length * length)
    if rest or not heads:
        raise Refused(f"its probabilities are {probabilities.shape} for {rows} rows of {length} tokens")
    return heads


def _attention(
    projections: list[np.ndarray], heads: int, attend: np.ndarray, bias: np.ndarray, filter_value: float
) -> np.ndarray:
    """The formula. Q, K and V (B, S, H), attend (B, S) -> (B, S, H)."""
    batch, length, width = projections[0].shape
    query, key, value = (
        each.reshape(batch, length, heads, -1).transpose(0, 2, 1, 3).astype(np.float32) for each in projections
    )
    scores = query @ key.swapaxes(-1, -2) / np.float32(np.sqrt(width // heads)) + bias.astype(np.float32)
    scores = scores + np.where(attend != 0, 0, filter_value).astype(np.float32)[:, None, None, :]
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    context = weights / weights.sum(-1, keepdims=True) @ value
    return np.asarray(context.transpose(0, 2, 1, 3).reshape(batch, length, width))


def _error(answer: np.ndarray, context: np.ndarray) -> float:
    return float(np.abs(answer - context).max(initial=0.0))
