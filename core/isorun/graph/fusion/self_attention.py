"""Self-attention: projections of one value, a mask over keys, the heads, and their concatenation.

Candidates are ``Softmax`` and ``Attention`` nodes. Everything between the dense layers before one and the dense layer
after it is fused. That subgraph is evaluated on samples with every kind of mask and compared with

    context = softmax(scale Q K^T + mask + bias) V

for every order of the three projections, so the decomposition and the layout do not matter. Matched:

- Q, K and V as three dense layers (merged into one matrix product), with or without biases; or as fewer layers that
  compute several of them, concatenated, interleaved by head, or interleaved by column
- fewer heads of keys and values than of queries
- queries and keys that are normalized by head, rotated by position, or multiplied by a number (see ``rotation.py``)
- key masks in any form (see ``masks.py``), or none; windows; a bias beside the mask (relative positions)
- a query without any key that yields the mean over all keys, zeros (PyTorch's guard), or the softmax of scores lowered
  by a finite mask value
- batch and sequence as two dimensions, or merged into one outside it (as in TensorFlow's dense layers)

Rejected: cross-attention; probabilities or projections that other nodes use; causal masks and other masks that are not
key masks; a soft cap, or any other deviation from the formula.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import reduce
from itertools import permutations
from operator import and_

import numpy as np
import onnx_ir as ir

from isorun.graph.analysis.evaluate import HALVES, CannotEvaluate, Samples, array, sizes
from isorun.graph.fusion import disentangled, distances, masks, rotation
from isorun.graph.fusion.attention_pattern import AttentionPattern, find
from isorun.graph.fusion.disentangled import Disentangled
from isorun.graph.fusion.masks import Bias, KeyMask, MaskClassifier, Reach
from isorun.graph.fusion.rotation import Norm, Turn
from isorun.graph.matching import subgraph
from isorun.graph.matching.probes import Evaluate, Probes
from isorun.graph.matching.report import CannotFuse, FusionReport
from isorun.graph.matching.subgraph import DenseLayer
from isorun.graph.ops import functions, positions

KIND = functions.ATTENTION
_TOLERANCE = 1e-4
_HALF_TOLERANCE = 5e-3  # a 16-bit scale has three significant digits
_SCALE_TOLERANCE = 1e-5
_FINITE_MASK = -1e30  # with a mask value above this, the scores of a fully masked row still differ


@dataclass(frozen=True)
class _Meaning:
    """What an attention computes: attributes, the sources of Q, K and V, what happens to Q and K, whether queries
    without any key give zeros, and what scores have beside Q K^T."""

    heads: int
    filter_value: float
    projections: tuple[_Projection, ...]
    guarded: bool
    scale: float
    norms: tuple[Norm | None, Norm | None]
    turn: Turn
    positional: Disentangled | None


@dataclass(frozen=True)
class _Projection:
    """The columns of a dense layer that compute queries, keys or values."""

    layer: DenseLayer
    columns: tuple[int, ...]

    def of(self, array: np.ndarray) -> np.ndarray:
        """The projection's part of an array whose last dimension is the layer's columns."""
        whole = self.columns == tuple(range(array.shape[-1]))
        return array if whole else array[..., list(self.columns)]


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
        self._in_order: ir.Value | None = None
        self._turns: dict[tuple[object, ...], tuple[ir.Value, ir.Value]] = {}

    def fuse(self, root: ir.Node) -> None:
        pattern = find(root)
        rotation.check_sides(pattern)
        mask, bias = self._mask_and_bias(pattern)
        meaning = self._meaning(pattern, mask, bias)
        bias = self._relative(pattern, bias) if bias is not None else None
        self._rewrite(pattern, meaning, mask, bias)

    def _mask_and_bias(self, pattern: AttentionPattern) -> tuple[KeyMask | None, ir.Value | None]:
        key_masks: list[KeyMask] = []
        biases: dict[ir.Value, Bias] = {}
        for side in pattern.sides:
            for term in self._classifier.terms(side, pattern.around):
                if isinstance(term, KeyMask):
                    key_masks.append(term)
                else:
                    biases[term.value] = term
        origins = {term.origin: None for term in key_masks if term.origin is not None}
        for what, values in (("masks", origins), ("biases", biases)):
            if len(values) > 1:
                names = ", ".join(sorted(repr(value.name) for value in values))
                raise CannotFuse(f"expected at most one of its {what}, got {len(values)}: {names}")
        bias = next(iter(biases), None)
        if not key_masks:
            return None, bias
        reach = reduce(and_, (term.reach for term in key_masks))
        masked = min((term.masked for term in key_masks if term.masked is not None), default=None)
        if reach.window is not None and (reach.causal or reach.paired or bias is not None):
            raise CannotFuse("it has a window and a bias, a causal mask or a mask of queries")
        added = [term for term in key_masks if term.masked is not None]
        if reach.window is not None and len(added) > 1:  # what two terms lower is lower than what one of them does
            raise CannotFuse("it has a window beside its mask: expected one mask, got a sum of two")
        if reach != Reach() and masked is not None and masked > _FINITE_MASK:
            raise CannotFuse(f"its mask differs between queries and lowers scores by {masked}")
        return KeyMask(next(iter(origins), None), masked, reach), bias

    def _meaning(self, pattern: AttentionPattern, mask: KeyMask | None, bias: ir.Value | None) -> _Meaning:
        """Compare the subgraph with the formula on samples.

        Raises:
            CannotFuse: they differ.
        """
        finite = mask is not None and mask.masked is not None and mask.masked > _FINITE_MASK
        filter_value = mask.masked if mask is not None and mask.masked is not None and finite else functions.LOWEST
        fallbacks = {"scores"} if mask is None else {"scores", "zeros"}
        half = subgraph.dtype(pattern.layers[0].weight) in HALVES
        tolerance = _HALF_TOLERANCE if half else _TOLERANCE
        length = self._probes.lengths[0]
        heads = _heads(
            pattern, self._probes.evaluator(self._sample(pattern, mask, length)[0]), self._probes.rows, length
        )
        size = pattern.width // heads
        if (
            pattern.width % heads
            or not pattern.key_width
            or pattern.key_width % size
            or heads * size % pattern.key_width
        ):
            raise CannotFuse(
                f"its output has width {pattern.width} for {heads} heads, and its keys and values {pattern.key_width}"
            )
        candidates = _candidates(pattern, heads)
        norms = rotation.norms(pattern)
        terms = disentangled.terms(pattern, size, self._probes)
        positional: Disentangled | None = None
        scale, turn = float(1 / np.sqrt(size)), Turn(1.0)
        for length in self._probes.lengths:
            sample, attend = self._sample(pattern, mask, length)
            evaluate = self._probes.evaluator(sample)
            context = evaluate(pattern.context)
            rows = (self._probes.rows, length, -1)
            if context.size != self._probes.rows * length * pattern.width:
                raise CannotFuse(f"its output is {context.shape} for {heads} heads and projections of {pattern.width}")
            context = context.reshape(rows)
            offset = np.zeros(()) if bias is None else evaluate(bias)[:1]
            allowed = (Reach() if mask is None else mask.reach).pairs(attend)
            some = allowed.any(axis=-1)
            expected, turns = {}, {}
            for projections in candidates:
                parts = [part.of(sample[part.layer.output]).reshape(rows) for part in projections]
                query, key, value = (_by_head(part, size) for part in parts)
                if terms and (positional := terms.of(projections[0].layer, projections[1].layer)) is None:
                    continue
                turned = self._turn(pattern, sample, norms, (query, key), tolerance)
                if turned is None:
                    continue
                turns[projections] = turned
                query, key = (
                    turned[1].of(part if norm is None else norm.of(part))
                    for part, norm in zip((query, key), norms, strict=True)
                )
                scores = offset if positional is None else offset + positional.bias(query, key) * turned[0]
                expected[projections] = _attention(query, key, value, turned[0], allowed, scores, filter_value)
            errors = {projections: _error(result[some], context[some]) for projections, result in expected.items()}
            candidates = [projections for projections, error in errors.items() if error < tolerance]
            if not candidates:
                what = f"the error on samples is {min(errors.values()):.2g}" if errors else "Q or K is another value"
                raise CannotFuse(
                    f"it does not compute softmax(scale Q K^T + mask) V: {what} (a soft cap, or a mask that is not a "
                    "key mask)"
                )
            scale, turn = turns[candidates[0]]
            if not some.all() and np.isfinite(context[~some]).all():
                masked = {"scores": expected[candidates[0]][~some], "zeros": np.zeros_like(context[~some])}
                fallbacks = {name for name in fallbacks if _error(masked[name], context[~some]) < tolerance}
        if not fallbacks:
            raise CannotFuse("no fused operator has its output for a fully masked row")
        positional = terms.of(candidates[0][0].layer, candidates[0][1].layer) if terms else None
        return _Meaning(heads, filter_value, candidates[0], "scores" not in fallbacks, scale, norms, turn, positional)

    def _turn(
        self,
        pattern: AttentionPattern,
        sample: Samples,
        norms: tuple[Norm | None, Norm | None],
        raw: tuple[np.ndarray, np.ndarray],
        tolerance: float,
    ) -> tuple[float, Turn] | None:
        """The factor of all scores, and the rotation of queries and keys; ``None`` if these are other projections.

        Args:
            pattern: the attention.
            sample: samples for its projections.
            norms: of queries and keys.
            raw: queries (B, N, S, d) and keys (B, K, S, d).
            tolerance: the largest error.
        """
        size = raw[0].shape[-1]
        if pattern.operands is None:
            return float(1 / np.sqrt(size)), Turn(1.0)
        evaluate = self._probes.evaluator(sample)
        sizes = rotation.possible_sizes(pattern, evaluate, size)
        turns, values = [], [evaluate(value) for value in pattern.operands]
        is_product = pattern.root.op_type == "Softmax"
        for index, (value, part, norm) in enumerate(zip(values, raw, norms, strict=True)):
            length = part.shape[2]
            result = rotation.by_head(value, size, length, is_product and index == 1, len(part))
            unit = part if norm is None else norm.of(part)
            if result.shape[1] % unit.shape[1]:
                return None
            repeated = np.repeat(unit, result.shape[1] // unit.shape[1], axis=1)
            turn = rotation.fit(repeated, result, sizes, tolerance)
            if turn is None:
                return None
            turns.append(turn)
        if not turns[0].like(turns[1], tolerance):
            return None
        return turns[0].factor * turns[1].factor * self._factor(pattern, sample, values, size), turns[0]

    def _factor(self, pattern: AttentionPattern, sample: Samples, values: list[np.ndarray], size: int) -> float:
        """What the product of queries and keys is multiplied by: how scores change when both are twice as large, beside
        how they change when one of them is."""
        root, operands = pattern.root, pattern.operands
        assert operands is not None
        if root.op_type == "Attention":
            return root.attributes.get_float("scale", 0.0) or float(1 / np.sqrt(size))
        scores = root.inputs[0]
        assert scores is not None
        (query, key), rows = values, self._probes.rows

        def own(pairs: np.ndarray) -> np.ndarray:
            """What each token has with itself, in the row without padding: nothing masks it."""
            return np.diagonal(pairs.reshape(rows, -1, *pairs.shape[-2:])[0], axis1=-2, axis2=-1).astype(np.float64)

        neither, first, second, both = (
            own(self._probes.evaluator({**sample, operands[0]: one * query, operands[1]: other * key})(scores))
            for one, other in ((1, 1), (2, 1), (1, 2), (2, 2))
        )
        changes, products = both - first - second + neither, own(np.matmul(query, key))
        return float((changes * products).sum() / np.square(products).sum())

    def _sample(self, pattern: AttentionPattern, mask: KeyMask | None, length: int) -> tuple[Samples, np.ndarray]:
        """Samples for the inputs of an attention, and the keys that each row attends to."""
        random = np.random.default_rng(length)
        rows = self._probes.rows
        sample = {**self._probes.feeds(length), **pattern.around(rows, length)}
        for layer in pattern.layers:
            sample[layer.output] = random.normal(size=sample[layer.output].shape).astype(np.float32)
        if mask is None or mask.origin is None:
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
        size = pattern.width // meaning.heads
        kind = KIND if pattern.is_joint else functions.CORE
        given: dict[str, ir.Value | None] = {"key_mask": key_mask, "bias": bias}
        if pattern.is_joint:
            weight, qkv_bias = self._qkv(meaning.projections)
            given |= {"hidden": hidden, "qkv_weight": weight, "qkv_bias": qkv_bias}
        else:
            outputs = (part.layer.output for part in meaning.projections)
            given |= dict(zip(("query", "key", "value"), outputs, strict=True))
        given |= {
            name: None if norm is None else norm.gamma
            for name, norm in zip(("query_gamma", "key_gamma"), meaning.norms, strict=True)
        }
        attributes: dict[str, int | float] = {"num_heads": meaning.heads, "mask_filter_value": meaning.filter_value}
        if meaning.guarded:
            attributes["guarded"] = 1
        if mask is not None:
            attributes |= {} if mask.reach.window is None else {"window": mask.reach.window}
            attributes |= {name: 1 for name in ("causal", "paired") if getattr(mask.reach, name)}
        if pattern.key_width != pattern.width:
            attributes["head_size"] = size
        rtol = 3e-3 if subgraph.dtype(pattern.layers[0].weight) in HALVES else 1e-4
        if not np.isclose(meaning.scale, size**-0.5, rtol=rtol):
            attributes["scale"] = _exact(meaning.scale)
        if epsilons := {norm.epsilon for norm in meaning.norms if norm is not None}:
            if None in meaning.norms or len(epsilons) > 1:
                raise CannotFuse("its queries and keys are normalized in different ways")
            attributes["norm_epsilon"] = epsilons.pop()
        if meaning.turn.size:
            given |= self._rotation(pattern, meaning, before)
            attributes |= {"interleaved": 1} if meaning.turn.interleaved else {}
            attributes |= {"rotated": meaning.turn.size} if meaning.turn.size != size else {}
        if meaning.positional is not None:
            given |= self._position_tables(meaning.positional, pattern)
            given["positions"] = positions.in_order(subgraph.Before(before), key_mask)
            attributes["scale"] = _exact(meaning.scale)
        subgraph.put(
            kind,
            functions.ordered(kind, given),
            attributes,
            pattern.context,
            flat=pattern.width if pattern.flat else None,
        )

    def _rotation(self, pattern: AttentionPattern, meaning: _Meaning, before: ir.Node) -> dict[str, ir.Value]:
        """Cosines, sines and positions, in the canonical form of fused graphs."""
        ids = masks.ids(self._graph)
        if ids is None:
            raise CannotFuse("its queries and keys are rotated by position, and the graph has no token ids")
        nodes, turn, dtype = subgraph.Before(before), meaning.turn, subgraph.dtype(pattern.layers[0].weight)
        key = (pattern.turns, turn.size, turn.interleaved, dtype)
        if key not in self._turns:
            length = rotation.LONG_LENGTH
            rates = None
            if not self._probes.fixed:
                possible = list(rotation.rates(pattern, turn))
                length = length if possible else rotation.table_length(pattern, self._probes)
                whole = self._long_turn(pattern, meaning, length)
                for rate in possible:
                    angles = np.arange(length, dtype=np.float32)[:, None] * rate
                    if rates is None and np.allclose(np.cos(angles), whole.cos, atol=1e-3):
                        rates = rate
            else:
                whole = turn
            if rates is not None:
                by_rates = (rates.tobytes(), dtype)
                if by_rates not in self._turns:
                    self._turns[by_rates] = positions.rotation(nodes, ids, nodes.constant("rates", rates), dtype)
                self._turns[key] = self._turns[by_rates]
            elif not self._probes.fixed and length == rotation.LONG_LENGTH:
                raise CannotFuse("the angles of its rotation are not proportional to the position")
            else:
                cos, sin = (
                    nodes.constant(name, table.astype(dtype.numpy()))
                    for name, table in (("cos", whole.cos), ("sin", whole.sin))
                )
                self._turns[key] = cos, sin
        cos, sin = self._turns[key]
        if self._in_order is None:
            self._in_order = positions.in_order(nodes, ids)
        return {"cos": cos, "sin": sin, "positions": self._in_order}

    def _long_turn(self, pattern: AttentionPattern, meaning: _Meaning, length: int) -> Turn:
        sample, _ = self._sample(pattern, None, length)
        size = pattern.width // meaning.heads
        parts = [
            _by_head(part.of(sample[part.layer.output]).reshape(self._probes.rows, length, -1), size)
            for part in meaning.projections[:2]
        ]
        query = parts[0] if meaning.norms[0] is None else meaning.norms[0].of(parts[0])
        assert pattern.operands is not None
        value = self._probes.evaluator(sample)(pattern.operands[0])
        result = rotation.by_head(value, size, length, False, self._probes.rows)
        turn = rotation.fit(query, result, [meaning.turn.size], 1e-3)
        if turn is None:
            raise CannotFuse("its queries are rotated in another way at longer rows")
        return turn

    def _position_tables(self, positional: Disentangled, pattern: AttentionPattern) -> dict[str, ir.Value]:
        """What scores have by distance: a table for queries, one for keys, and the row of each distance."""
        name, dtype = pattern.layers[0].weight.name, subgraph.dtype(pattern.layers[0].weight)
        tables = {"position_keys": positional.keys, "position_queries": positional.queries}
        given = {
            part: subgraph.constant(self._graph, f"{name}.{part}", ir.tensor(table.astype(dtype.numpy())))
            for part, table in tables.items()
        }
        key, shape = ("buckets", positional.buckets.tobytes()), positional.buckets.shape
        buckets = self._shared(key, "isorun.buckets", lambda: positional.buckets, ir.DataType.INT64, shape)
        return {**given, "buckets": buckets}

    def _relative(self, pattern: AttentionPattern, bias: ir.Value) -> ir.Value:
        """A bias, in the canonical form of fused graphs if it is a bias by distance."""
        if bias not in self._biases:
            before, dtype = pattern.context.producer(), subgraph.dtype(pattern.layers[0].weight)
            assert before is not None
            canonical = distances.canonical(self._probes, pattern.around, bias, masks.ids(self._graph), before, dtype)
            self._biases[bias] = bias if canonical is None else canonical
        return self._biases[bias]

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

    def _qkv(self, projections: tuple[_Projection, ...]) -> tuple[ir.Value, ir.Value | None]:
        """The merged weight (H, columns) and bias (columns). Layers that share weights share these too."""
        weights = [projection.layer.weight for projection in projections]
        biases = [projection.layer.bias for projection in projections]
        rows, name = sizes(weights[0])[0], weights[0].name
        columns = tuple(column for projection in projections for column in projection.columns)
        dtype = subgraph.dtype(weights[0])

        def weight() -> np.ndarray:
            return np.concatenate([part.of(array(part.layer.weight)) for part in projections], axis=1)

        def bias() -> np.ndarray:
            return np.concatenate(
                [
                    np.zeros(len(part.columns), dtype.numpy())
                    if part.layer.bias is None
                    else part.of(array(part.layer.bias))
                    for part in projections
                ]
            )

        layout = tuple(projection.columns for projection in projections)
        merged = len(set(weights)) == 1 and columns == tuple(range(sizes(weights[0])[1]))
        weight_value = weights[0]
        if not merged:
            key = (*weights, layout)
            weight_value = self._shared(key, f"{name}.qkv.weight", weight, dtype, (rows, len(columns)))
        if all(each is None for each in biases):
            return weight_value, None
        if merged and biases[0] is not None:
            return weight_value, biases[0]
        key = (*weights, *biases, layout)
        return weight_value, self._shared(key, f"{name}.qkv.bias", bias, dtype, (len(columns),))

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


def _candidates(pattern: AttentionPattern, heads: int) -> list[tuple[_Projection, ...]]:
    """Every assignment of projections to Q, K and V, in every layout of a layer with several."""
    wide, narrow = pattern.width, pattern.key_width
    columns = [sizes(layer.weight)[1] for layer in pattern.layers]
    candidates: dict[tuple[_Projection, ...], None] = {}
    if len(pattern.layers) == 3:
        for order in permutations(_Projection(layer, tuple(range(sizes(layer.weight)[1]))) for layer in pattern.layers):
            if [len(part.columns) for part in order] == [wide, narrow, narrow]:
                candidates[order] = None
        return list(candidates)
    for layout in _layouts(pattern.layers, columns, wide, narrow, heads):
        for order in permutations(layout):
            if [len(part.columns) for part in order] == [wide, narrow, narrow]:
                candidates[order] = None
    return list(candidates)


def _layouts(
    layers: tuple[DenseLayer, ...], columns: list[int], wide: int, narrow: int, heads: int
) -> Iterator[list[_Projection]]:
    """The three projections in one or two layers: concatenated, interleaved by head, or interleaved by column."""
    for widths in ((wide, narrow, narrow), (narrow, wide, narrow), (narrow, narrow, wide)):
        ends = np.cumsum((0, *widths))
        if len(layers) == 1 and columns[0] == ends[3]:
            yield [_Projection(layers[0], tuple(range(ends[i], ends[i + 1]))) for i in range(3)]
    if wide == narrow:
        for by in ("blocks", "heads", "columns"):
            parts = []
            for layer, total in zip(layers, columns, strict=True):
                count = total // wide
                numbers = np.arange(total)
                shape = {"blocks": (count, -1), "heads": (heads, count, -1), "columns": (-1, count)}[by]
                axis = {"blocks": 0, "heads": 1, "columns": 1}[by]
                for index in range(count):
                    chosen = numbers.reshape(shape).take(index, axis).reshape(-1)
                    parts.append(_Projection(layer, tuple(chosen.tolist())))
            if len(parts) == 3:
                yield parts
    elif len(layers) == 2:
        for one, other in (layers, layers[::-1]):
            if sizes(one.weight)[1] == wide and sizes(other.weight)[1] == 2 * narrow:
                halves = tuple(range(narrow)), tuple(range(narrow, 2 * narrow))
                yield [_Projection(one, tuple(range(wide))), *(_Projection(other, half) for half in halves)]


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


def _exact(scale: float) -> float:
    """A measured scale; the root of a whole number's reciprocal if it is close to one."""
    whole = round(scale**-2)
    return float(whole**-0.5) if whole and abs(scale**-2 / whole - 1) < _SCALE_TOLERANCE else scale


def _by_head(part: np.ndarray, size: int) -> np.ndarray:
    """(B, S, N d) -> (B, N, S, d)."""
    batch, length, _ = part.shape
    return part.reshape(batch, length, -1, size).swapaxes(1, 2)


def _attention(
    query: np.ndarray,
    key: np.ndarray,
    value: np.ndarray,
    scale: float,
    allowed: np.ndarray,
    bias: np.ndarray,
    filter_value: float,
) -> np.ndarray:
    """The formula. Q (B, N, S, d), K and V (B, K, S, d), allowed (B, S, S) -> (B, S, N d)."""
    batch, heads, length, _ = query.shape
    key, value = (np.repeat(part, heads // part.shape[1], axis=1).astype(np.float32) for part in (key, value))
    scores = query.astype(np.float32) @ key.swapaxes(-1, -2) * np.float32(scale) + bias.astype(np.float32)
    scores = scores + np.where(allowed, 0, filter_value).astype(np.float32)[:, None]
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    context = weights / weights.sum(-1, keepdims=True) @ value
    return np.asarray(context.transpose(0, 2, 1, 3).reshape(batch, length, -1))


def _error(result: np.ndarray, expected: np.ndarray) -> float:
    return float(np.abs(result - expected).max(initial=0.0))
