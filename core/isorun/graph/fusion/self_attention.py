"""Self-attention: projections of one value, a mask over keys, the heads, and their concatenation.

Candidates are ``Softmax`` and ``Attention`` nodes. Everything between the dense layers before one and the dense layer
after it is fused. That subgraph is evaluated on samples with every kind of mask and compared with

    context = softmax(Q K^T / sqrt(d) + mask + bias) V

for every order of the three projections, so the decomposition and the layout do not matter. Matched:

- Q, K and V as three dense layers (merged into one matrix product), with or without biases; or as fewer layers that
  compute several of them, concatenated, interleaved by head, or interleaved by column
- key masks in any form (see ``masks.py``), or none; a bias beside the mask (relative positions)
- a fully masked row that yields the mean over all keys, zeros (PyTorch's guard), or the softmax of scores lowered by a
  finite mask value
- batch and sequence as two dimensions, or merged into one outside it (as in TensorFlow's dense layers)

Rejected: cross-attention; probabilities or projections that other nodes use; causal masks and other masks that are not
key masks; another scale, a soft cap, or any other deviation from the formula.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import permutations

import numpy as np
import onnx_ir as ir

from isorun.graph.analysis.evaluate import HALVES, CannotEvaluate, Samples, ancestors, array, is_constant, sizes
from isorun.graph.fusion import masks
from isorun.graph.fusion.attention_pattern import AttentionPattern, find
from isorun.graph.fusion.masks import Bias, KeyMask, MaskClassifier
from isorun.graph.matching import subgraph
from isorun.graph.matching.probes import Evaluate, Probes
from isorun.graph.matching.report import CannotFuse, FusionReport
from isorun.graph.matching.subgraph import DenseLayer
from isorun.graph.ops import functions, positions

KIND = functions.ATTENTION
_TOLERANCE = 1e-4
_HALF_TOLERANCE = 5e-3  # a 16-bit scale has three significant digits
_LONG_LENGTHS = (400, 2200)  # at one of them, every bucket of distances occurs
_FINITE_MASK = -1e30  # with a mask value above this, the scores of a fully masked row still differ


@dataclass(frozen=True)
class _Meaning:
    """What an attention computes: attributes, the sources of Q, K and V, whether fully masked rows are zero."""

    heads: int
    filter_value: float
    projections: tuple[_Projection, ...]
    guarded: bool


@dataclass(frozen=True)
class _Projection:
    """Some or all columns of a dense layer, which compute queries, keys or values.

    A layer with ``count`` projections has them concatenated (``blocks``), interleaved by head (``heads``), or
    interleaved by column (``columns``).
    """

    layer: DenseLayer
    index: int
    count: int
    layout: str

    def of(self, array: np.ndarray, heads: int) -> np.ndarray:
        """The projection's part of an array whose last dimension is the layer's columns."""
        if self.count == 1:
            return array
        *leading, columns = array.shape
        if self.layout == "blocks":
            part = array.reshape(*leading, self.count, -1)[..., self.index, :]
        elif self.layout == "heads":
            part = array.reshape(*leading, heads, self.count, -1)[..., self.index, :]
        else:
            part = array.reshape(*leading, -1, self.count)[..., self.index]
        return part.reshape(*leading, columns // self.count)


def fuse(model: ir.Model, report: FusionReport) -> None:
    """Fuse every self-attention of a normalized model, in place."""
    fusion = _Fusion(model)
    for node in list(model.graph):
        if node.domain == "" and node.op_type in ("Softmax", "Attention") and node.graph is not None:
            try:
                fusion.fuse(node)
            except (CannotFuse, CannotEvaluate) as why:
                report.refuse(KIND, node.name, str(why))
            else:
                report.accept(KIND)


class _Fusion:
    def __init__(self, model: ir.Model) -> None:
        self._graph = model.graph
        self._probes = Probes(model.graph)
        self._classifier = MaskClassifier(self._probes)
        self._weights: dict[tuple[object, ...], ir.Value] = {}
        self._masks: dict[ir.Value | None, ir.Value] = {}
        self._biases: dict[ir.Value, ir.Value] = {}

    def fuse(self, root: ir.Node) -> None:
        pattern = find(root)
        mask, bias = self._mask_and_bias(pattern)
        meaning = self._meaning(pattern, mask, bias)
        bias = self._relative(pattern, bias) if bias is not None else None
        self._rewrite(pattern, meaning, mask, bias)

    def _mask_and_bias(self, pattern: AttentionPattern) -> tuple[KeyMask | None, ir.Value | None]:
        key_masks: dict[ir.Value, KeyMask] = {}
        biases: dict[ir.Value, Bias] = {}
        for side in pattern.sides:
            for term in self._classifier.terms(side, pattern.around):
                if isinstance(term, KeyMask):
                    if term.masked is not None or term.origin not in key_masks:
                        key_masks[term.origin] = term
                else:
                    biases[term.value] = term
        for what, values in (("masks", key_masks), ("biases", biases)):
            if len(values) > 1:
                names = ", ".join(sorted(repr(value.name) for value in values))
                raise CannotFuse(f"expected at most one of its {what}, got {len(values)}: {names}")
        return next(iter(key_masks.values()), None), next(iter(biases), None)

    def _meaning(self, pattern: AttentionPattern, mask: KeyMask | None, bias: ir.Value | None) -> _Meaning:
        """Compare the subgraph with the formula on samples.

        Raises:
            CannotFuse: they differ.
        """
        finite = mask is not None and mask.masked is not None and mask.masked > _FINITE_MASK
        filter_value = mask.masked if mask is not None and mask.masked is not None and finite else functions.LOWEST
        candidates = _candidates(pattern)
        fallbacks = {"scores"} if mask is None else {"scores", "zeros"}
        heads = 0
        half = subgraph.dtype(pattern.layers[0].weight) in HALVES
        tolerance = _HALF_TOLERANCE if half else _TOLERANCE
        for length in self._probes.lengths:
            sample, attend = self._sample(pattern, mask, length)
            evaluate = self._probes.evaluator(sample)
            rows = (self._probes.rows, length, -1)
            context = evaluate(pattern.context)
            heads = _heads(pattern, evaluate, self._probes.rows, length)
            if pattern.width % heads or context.size != self._probes.rows * length * pattern.width:
                raise CannotFuse(f"its output is {context.shape} for {heads} heads and projections of {pattern.width}")
            context = context.reshape(rows)
            offset = np.zeros(()) if bias is None else evaluate(bias)[:1]
            expected = {
                projections: _attention(
                    [part.of(sample[part.layer.output], heads).reshape(rows) for part in projections],
                    heads,
                    attend,
                    offset,
                    filter_value,
                )
                for projections in candidates
            }
            some = attend.any(axis=1)
            errors = {projections: _error(result[some], context[some]) for projections, result in expected.items()}
            candidates = [projections for projections, error in errors.items() if error < tolerance]
            if not candidates:
                raise CannotFuse(
                    "it does not compute softmax(Q K^T / sqrt(d) + mask) V: the error on samples is "
                    f"{min(errors.values()):.2g} (another scale, a soft cap, or a mask that is not a key mask)"
                )
            if not some.all() and np.isfinite(context[~some]).all():
                masked = {"scores": expected[candidates[0]][~some], "zeros": np.zeros_like(context[~some])}
                fallbacks = {name for name in fallbacks if _error(masked[name], context[~some]) < tolerance}
        if not fallbacks:
            raise CannotFuse("no fused operator has its output for a fully masked row")
        guarded = "scores" not in fallbacks
        return _Meaning(heads, filter_value, candidates[0], guarded)

    def _sample(self, pattern: AttentionPattern, mask: KeyMask | None, length: int) -> tuple[Samples, np.ndarray]:
        """Samples for the inputs of an attention, and the keys that each row attends to."""
        random = np.random.default_rng(length)
        rows = self._probes.rows
        sample = {**self._probes.feeds(length), **pattern.around(rows, length)}
        for layer in pattern.layers:
            sample[layer.output] = random.normal(size=sample[layer.output].shape).astype(np.float32)
        if mask is None:
            return sample, np.ones((rows, length), np.int64)
        dtype = np.dtype(bool) if mask.origin.dtype is None else mask.origin.dtype.numpy()
        attend = self._probes.masks(length)
        sample[mask.origin] = attend.astype(dtype)
        return sample, attend

    def _rewrite(
        self, pattern: AttentionPattern, meaning: _Meaning, mask: KeyMask | None, bias: ir.Value | None
    ) -> None:
        before = pattern.context.producer()
        assert before is not None
        hidden = pattern.hidden
        key_mask = self._key_mask(None if mask is None else mask.origin, pattern, before)
        if pattern.flat:
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
            pattern.context,
            flat=pattern.width if pattern.flat else None,
        )

    def _relative(self, pattern: AttentionPattern, bias: ir.Value) -> ir.Value:
        """A bias, in the canonical form of fused graphs if it is a bias by distance."""
        if bias not in self._biases:
            self._biases[bias] = bias
            ids, before = masks.ids(self._graph), pattern.context.producer()
            assert before is not None
            nodes, dtype = subgraph.Before(before), subgraph.dtype(pattern.layers[0].weight).numpy()
            rows = None if ids is None else self._along_distances(pattern, bias)
            if ids is None or rows is None:
                return bias
            if (slopes := positions.slopes(rows)) is not None:
                slope = nodes.constant("slopes", slopes.astype(dtype).reshape(1, -1, 1, 1))
                self._biases[bias] = positions.linear_bias(nodes, ids, slope)
            elif (near := positions.trimmed(rows)) is not rows:
                table = nodes.constant("by_distance", near.astype(dtype))
                self._biases[bias] = positions.relative_bias(nodes, ids, table, len(near) // 2)
        return self._biases[bias]

    def _along_distances(self, pattern: AttentionPattern, value: ir.Value) -> np.ndarray | None:
        """A (1, N, S, S) value by distance, (2 S - 1, N), at a length where the farthest distances are alike; ``None``
        if it depends on more than the distance, or the graph accepts one length only."""
        if self._probes.fixed:
            return None
        rows = None
        for length in _LONG_LENGTHS:
            length = min([length, *(sizes(each)[-1] for each in ancestors(value) if _is_square(each))])
            samples = {**self._probes.feeds(length), **pattern.around(self._probes.rows, length)}
            squares = self._probes.evaluator(samples)(value)
            if squares.ndim != 4 or squares.shape[2:] != (length, length) or (squares != squares[:1]).any():
                return None
            rows = positions.along_distances(squares[0])
            if rows is None or positions.slopes(rows) is not None or positions.trimmed(rows) is not rows:
                break
        return rows

    def _key_mask(self, origin: ir.Value | None, pattern: AttentionPattern, before: ir.Node) -> ir.Value:
        """The mask as (B, S) int64; ones if the model has no mask."""
        if origin is not None and origin.dtype == ir.DataType.INT64:
            return origin
        if origin not in self._masks:
            if origin is None:
                shape = self._batch_and_length(pattern, before)
                self._masks[origin] = subgraph.insert(before, "Expand", [self._number("isorun.attend", 1), shape])
            else:
                mask = origin
                if origin.dtype in (ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.DOUBLE):
                    mask = subgraph.cast(before, mask, ir.DataType.BOOL)
                self._masks[origin] = subgraph.cast(before, mask, ir.DataType.INT64)
        return self._masks[origin]

    def _batch_and_length(self, pattern: AttentionPattern, before: ir.Node) -> ir.Value:
        if not pattern.flat:
            return subgraph.insert(before, "Shape", [pattern.hidden], start=0, end=2)
        for value in self._graph.inputs:
            if value.shape is not None and len(value.shape) == 2:
                return subgraph.insert(before, "Shape", [value])
        raise CannotFuse("it has no mask, and the graph has no (batch, sequence) input")

    def _number(self, name: str, number: int | list[int]) -> ir.Value:
        return subgraph.constant(self._graph, name, ir.tensor(np.array(number, np.int64)))

    def _qkv(self, projections: tuple[_Projection, ...], heads: int) -> list[ir.Value]:
        """The merged weight (H, 3 H) and bias (3 H). Layers that share weights share these too."""
        weights = [projection.layer.weight for projection in projections]
        biases = [projection.layer.bias for projection in projections]
        (rows, columns), name = sizes(weights[0]), weights[0].name
        width = columns // projections[0].count
        dtype = subgraph.dtype(weights[0])

        def weight() -> np.ndarray:
            return np.concatenate([part.of(array(part.layer.weight), heads) for part in projections], axis=1)

        def bias() -> np.ndarray:
            zeros = np.zeros(width, dtype.numpy())
            return np.concatenate(
                [zeros if part.layer.bias is None else part.of(array(part.layer.bias), heads) for part in projections]
            )

        layout = tuple((part.index, part.layout) for part in projections)
        merged = len(set(weights)) == 1 and layout == tuple((index, "blocks") for index in range(3))
        weight_value = weights[0]
        if not merged:
            key = (*weights, layout)
            weight_value = self._shared(key, f"{name}.qkv.weight", weight, dtype, (rows, 3 * width))
        if merged and biases[0] is not None:
            return [weight_value, biases[0]]
        key = (*weights, *biases, layout)
        return [weight_value, self._shared(key, f"{name}.qkv.bias", bias, dtype, (3 * width,))]

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


def _candidates(pattern: AttentionPattern) -> list[tuple[_Projection, ...]]:
    """Every assignment of projections to Q, K and V, in every layout of a layer with several."""
    counts = [sizes(layer.weight)[1] // pattern.width for layer in pattern.layers]
    return [
        order
        for layout in (("blocks",) if max(counts) == 1 else ("blocks", "heads", "columns"))
        for order in permutations(
            _Projection(layer, index, count, layout)
            for layer, count in zip(pattern.layers, counts, strict=True)
            for index in range(count)
        )
    ]


def _is_square(value: ir.Value) -> bool:
    """Whether a value is a constant for every pair of positions, of which exporters slice the first."""
    return is_constant(value) and len(sizes(value)) >= 3 and sizes(value)[-1] == sizes(value)[-2]


def _heads(pattern: AttentionPattern, evaluate: Evaluate, rows: int, length: int) -> int:
    root = pattern.root
    if root.op_type == "Attention":
        if "q_num_heads" in root.attributes:
            return root.attributes["q_num_heads"].as_int()
        assert root.inputs[0] is not None
        return int(evaluate(root.inputs[0]).shape[1])
    probabilities = evaluate(root.outputs[0])
    heads, remainder = divmod(probabilities.size, rows * length * length)
    if remainder or not heads:
        raise CannotFuse(f"its probabilities have shape {probabilities.shape} for {rows} rows of {length} tokens")
    return heads


def _attention(
    projections: list[np.ndarray], heads: int, attend: np.ndarray, bias: np.ndarray, filter_value: float
) -> np.ndarray:
    """The formula. Q, K and V (B, S, H), attend (B, S) -> (B, S, H)."""
    batch, length, width = projections[0].shape
    query, key, value = (
        projection.reshape(batch, length, heads, -1).transpose(0, 2, 1, 3).astype(np.float32)
        for projection in projections
    )
    scores = query @ key.swapaxes(-1, -2) / np.float32(np.sqrt(width // heads)) + bias.astype(np.float32)
    scores = scores + np.where(attend != 0, 0, filter_value).astype(np.float32)[:, None, None, :]
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    context = weights / weights.sum(-1, keepdims=True) @ value
    return np.asarray(context.transpose(0, 2, 1, 3).reshape(batch, length, width))


def _error(result: np.ndarray, expected: np.ndarray) -> float:
    return float(np.abs(result - expected).max(initial=0.0))
