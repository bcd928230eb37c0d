"""What an attention computes, found by evaluating it on samples with every kind of mask.

The subgraph between the dense layers is compared with

    context = softmax(scale Q K^T + mask + bias) V

for every order of the projections.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from isorun.graph.analysis.evaluate import HALVES, CannotEvaluate, Samples
from isorun.graph.fusion.self_attention import disentangled, rotation
from isorun.graph.fusion.self_attention.disentangled import Disentangled
from isorun.graph.fusion.self_attention.masks import KeyMask, require_masking
from isorun.graph.fusion.self_attention.pattern import AttentionPattern
from isorun.graph.fusion.self_attention.projection import Projection, assignments
from isorun.graph.fusion.self_attention.reach import FINITE_MASK, Reach
from isorun.graph.fusion.self_attention.rotation import TOLERANCE, Norm, Turn
from isorun.graph.io.nodes import needed
from isorun.graph.matching import subgraph
from isorun.graph.matching.probes import Evaluate, Probes
from isorun.graph.matching.report import CannotFuse
from isorun.graph.ops import functions

_USUAL_SCORE = 10.0
# Of queries without any key: beside a mask of -10,000, where fp32 has steps of 1e-3, or in fp16 of -65,504, scores have
# few digits left.
_KEYLESS_TOLERANCE, _HALF_KEYLESS_TOLERANCE = 1e-3, 5e-3
_TURN_TOLERANCE = 1e-3  # of queries rotated by hundreds of positions; rates that differ give other angles altogether


@dataclass(frozen=True)
class Formula:
    """What an attention computes: attributes, the sources of Q, K and V, what happens to Q and K, whether V is rotated
    like them, whether queries without any key give zeros, whether two masks are added up, and what scores have beside
    Q K^T."""

    heads: int
    filter_value: float
    projections: tuple[Projection, ...]
    guarded: bool
    scale: float
    norms: tuple[Norm | None, Norm | None]
    turn: Turn
    turns_values: bool
    positional: Disentangled | None
    summed: bool


class AttentionProbe:
    """Finds out what attentions compute.

    Args:
        probes: evaluate the graph on samples.
    """

    def __init__(self, probes: Probes) -> None:
        self.probes = probes

    def formula(self, pattern: AttentionPattern, mask: KeyMask | None, bias: ir.Value | None) -> Formula:
        """Compare the subgraph with the formula on samples.

        Raises:
            CannotFuse: they differ.
        """
        finite = mask is not None and mask.masked is not None and mask.masked > FINITE_MASK
        filter_value = mask.masked if mask is not None and mask.masked is not None and finite else functions.LOWEST
        fallbacks = {"scores"} if mask is None else {"scores", "zeros"}
        if mask is not None and mask.origin is not None and mask.reach == Reach(causal=True):
            fallbacks.add("summed")
        dtype = subgraph.dtype(pattern.layers[0].weight)
        samples = [self.sample(pattern, mask, length) for length in self.probes.lengths]
        evaluators = [self.probes.evaluator(sample) for sample, _ in samples]
        heads = _heads(pattern, evaluators[0], self.probes.rows, self.probes.lengths[0])
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
        whether: tuple[bool, ...] = (False, True)  # values may be rotated
        candidates = dict.fromkeys(assignments(pattern, heads), whether)
        if mask is not None and pattern.root.op_type != "Attention" and pattern.root.inputs[0] is not None:
            later_scale = require_masking(mask, evaluators[0](pattern.root.inputs[0]), samples[0][1])
            filter_value *= later_scale if finite else 1
        norms = rotation.norms(pattern, size)
        positional = disentangled.terms(pattern, size, self.probes, samples[0][0])
        factor: float | None = None
        scale, turn = 1.0, Turn(1.0)
        for length, (sample, attend), evaluate in zip(self.probes.lengths, samples, evaluators, strict=True):
            context = evaluate(pattern.context)
            rows = (self.probes.rows, length, -1)
            is_by_row = context.ndim != 3 or context.shape[:2] == (self.probes.rows, length)
            if context.size != self.probes.rows * length * pattern.width or not is_by_row:
                raise CannotFuse(f"its output is {context.shape} for {heads} heads and projections of {pattern.width}")
            context = context.reshape(rows)
            offset = np.zeros(()) if bias is None else evaluate(bias)
            offset = offset.reshape((1,) * (4 - offset.ndim) + offset.shape)[:1]  # for rows, heads, queries and keys
            allowed = (Reach() if mask is None else mask.reach).pairs(attend)
            some = allowed.any(axis=-1)
            expected, turns, largest = {}, {}, _USUAL_SCORE
            for projections, possible in candidates.items():
                parts = [part.of(sample[part.layer.output]).reshape(rows) for part in projections]
                query, key, value = (_by_head(part, size) for part in parts)
                turned = self._turn(pattern, evaluate, norms, (query, key))
                if turned is None:
                    continue
                if factor is None:
                    factor = self._factor(pattern, sample, evaluate, size)
                turns[projections] = turned = factor * turned[0], turned[1]
                query, key = (
                    turned[1].of(part if norm is None else norm.of(part))
                    for part, norm in zip((query, key), norms, strict=True)
                )
                scores = offset if positional is None else offset + positional.bias(query, key)
                largest = max(largest, _largest_score(query, key, turned[0]))
                for turns_values in possible if turned[1].size else (False,):
                    values = turned[1].of(value) if turns_values else value
                    expected[projections, turns_values] = _attention(
                        query, key, values, turned[0], allowed, scores, filter_value
                    )
            errors = {terms: _error(result[some], context[some]) for terms, result in expected.items()}
            tolerance = TOLERANCE * largest / _USUAL_SCORE  # large scores have fewer digits
            fitting = [terms for terms, error in errors.items() if error < tolerance]
            if not fitting:
                what = f"the error on samples is {min(errors.values()):.2g}" if errors else "Q or K is another value"
                raise CannotFuse(
                    f"it does not compute softmax(scale Q K^T + mask) V: {what} (a soft cap, or a mask that is not a "
                    "key mask)"
                )
            candidates = {terms: tuple(also for fitted, also in fitting if fitted == terms) for terms, _ in fitting}
            scale, turn = turns[fitting[0][0]]
            if scale <= 0:  # no runtime's attention has one
                raise CannotFuse(f"its scale must be above 0, got {scale:.3g}")
            if not some.all() and np.isfinite(context[~some]).all():
                masked = {"scores": expected[fitting[0]][~some], "zeros": np.zeros_like(context[~some])}
                if "summed" in fallbacks:
                    part = fitting[0][0][2]
                    value = _by_head(part.of(sample[part.layer.output]).reshape(rows), size)
                    masked["summed"] = _summed(value, attend, heads)[~some]
                keyless = _HALF_KEYLESS_TOLERANCE if dtype in HALVES else _KEYLESS_TOLERANCE
                fallbacks = {name for name in fallbacks if _error(masked[name], context[~some]) < keyless}
        is_narrow = finite and mask is not None and mask.reach != Reach()
        if dtype == ir.DataType.FLOAT16 and filter_value < functions.MASKING and (is_narrow or not fallbacks):
            # fp16 has steps of 32 at its lowest number: what that leaves of scores, a runtime decides.
            filter_value, fallbacks = functions.LOWEST, {"scores"}
        if not fallbacks:
            raise CannotFuse("no fused operator has its output for a fully masked row")
        projections, turns_values = fitting[0]
        turn = rotation.shortest(pattern, turn)
        fallback = next(name for name in ("scores", "zeros", "summed") if name in fallbacks)
        return Formula(
            heads,
            filter_value,
            projections,
            fallback == "zeros",
            scale,
            norms,
            turn,
            turns_values,
            None if positional is None else positional.scaled(scale),
            fallback == "summed",
        )

    def _turn(
        self,
        pattern: AttentionPattern,
        evaluate: Evaluate,
        norms: tuple[Norm | None, Norm | None],
        raw: tuple[np.ndarray, np.ndarray],
    ) -> tuple[float, Turn] | None:
        """The factor of queries times that of keys, and the rotation of both; ``None`` if these are other projections.

        Args:
            pattern: the attention.
            evaluate: evaluates it on samples for its projections.
            norms: of queries and keys.
            raw: queries (B, N, S, d) and keys (B, K, S, d).
        """
        size = raw[0].shape[-1]
        if pattern.operands is None:
            return 1.0, Turn(1.0)
        # By the shapes of cosines and sines
        lasts = {last for side in pattern.turns for last in evaluate(side).shape[-1:]}
        rotated = {times * last for last in lasts for times in (1, 2) if times * last <= size}
        sizes = sorted((count for count in rotated if count % 2 == 0), reverse=True)
        turns = []
        is_product = pattern.root.op_type == "Softmax"
        for index, (value, part, norm) in enumerate(zip(pattern.operands, raw, norms, strict=True)):
            length = part.shape[2]
            result = rotation.by_head(evaluate(value), size, length, is_product and index == 1, len(part))
            unit = part if norm is None else norm.of(part)
            if result.shape[1] % unit.shape[1]:
                return None
            repeated = np.repeat(unit, result.shape[1] // unit.shape[1], axis=1)
            turn = rotation.fit(repeated, result, sizes)
            if turn is None:
                return None
            turns.append(turn)
        if not turns[0].like(turns[1]):
            return None
        return turns[0].factor * turns[1].factor, turns[0]

    def _factor(self, pattern: AttentionPattern, sample: Samples, evaluate: Evaluate, size: int) -> float:
        """What the product of queries and keys is multiplied by: how scores change when both are twice as large, beside
        how they change when one of them is."""
        root, operands = pattern.root, pattern.operands
        if operands is None:
            return float(1 / np.sqrt(size))
        if root.op_type == "Attention":
            return root.attributes.get_float("scale", 0.0) or float(1 / np.sqrt(size))
        scores = needed(root.inputs[0])
        (query, key), rows = (evaluate(value) for value in operands), self.probes.rows
        product = np.matmul(query, key)

        def own(pairs: np.ndarray) -> np.ndarray:
            """What each token has with itself, in the row without padding: nothing masks it."""
            if pairs.shape[-1] != product.shape[-1]:
                raise CannotFuse(f"its scores have shape {pairs.shape}, and not one for each query and key")
            return np.diagonal(pairs.reshape(rows, -1, *pairs.shape[-1:] * 2)[0], axis1=-2, axis2=-1).astype(np.float64)

        first, second, both = (
            own(self.probes.evaluator({**sample, operands[0]: by_query * query, operands[1]: by_key * key})(scores))
            for by_query, by_key in ((2, 1), (1, 2), (2, 2))
        )
        changes, products = both - first - second + own(evaluate(scores)), own(product)
        return float((changes * products).sum() / np.square(products).sum())

    def sample(self, pattern: AttentionPattern, mask: KeyMask | None, length: int) -> tuple[Samples, np.ndarray]:
        """Samples for the inputs of an attention, and the keys that each row attends to."""
        random = np.random.default_rng(length)
        rows = self.probes.rows
        sample = {**self.probes.feeds(length), **pattern.around(rows, length)}
        for layer in pattern.layers:
            sample[layer.output] = random.normal(size=sample[layer.output].shape).astype(np.float32)
        if mask is None or mask.origin is None:
            return sample, np.ones((rows, length), np.int64)
        attend = self.probes.masks(length)
        sample[mask.origin] = mask.of_origin(attend)
        return sample, attend

    def long_turn(self, pattern: AttentionPattern, formula: Formula, length: int) -> Turn:
        """The rotation of an attention at longer rows than those of the samples.

        Raises:
            CannotFuse: it is another one there.
        """
        query, result = self._queries(pattern, formula, length, {})
        turn = rotation.fit(query, result, [formula.turn.size], 10 * TOLERANCE)
        if turn is None:
            raise CannotFuse("its queries are rotated in another way at longer rows")
        return turn

    def is_turned(
        self, pattern: AttentionPattern, formula: Formula, whole: Turn, tolerance: float = _TURN_TOLERANCE
    ) -> bool:
        """Whether the queries of an attention are rotated in a way, at longer rows than those of the samples too.

        Args:
            pattern: the attention.
            formula: what it computes.
            whole: the rotation by each position up to the last of a table; positions that are given are drawn from
                these.
            tolerance: of the error, relative to the largest number.
        """
        try:
            length = len(whole.cos) if pattern.positions is None else self.probes.lengths[-1]
            return self._is_turned(pattern, formula, whole, length, tolerance)
        except CannotEvaluate:  # a table is cut to the length of the row before positions are looked up
            if pattern.positions is None or self.probes.fixed:
                raise
            return self._is_turned(pattern, formula, whole, len(whole.cos), tolerance)

    def _is_turned(
        self, pattern: AttentionPattern, formula: Formula, whole: Turn, length: int, tolerance: float
    ) -> bool:
        """The same in rows of a length: by each position, or by random ones where positions are given."""
        samples = {}
        if pattern.positions is not None:
            drawn = np.random.default_rng(0).integers(0, len(whole.cos), (self.probes.rows, length))
            whole = replace(whole, cos=whole.cos[drawn][:, None], sin=whole.sin[drawn][:, None])
            samples = {pattern.positions: drawn}
        query, result = self._queries(pattern, formula, length, samples)
        error = _error(result, formula.turn.factor * whole.of(query))
        return error < tolerance * float(np.abs(result).max())

    def _queries(
        self, pattern: AttentionPattern, formula: Formula, length: int, samples: Samples
    ) -> tuple[np.ndarray, np.ndarray]:
        """Queries before and after their rotation, (B, N, S, d) each.

        Args:
            pattern: the attention.
            formula: what it computes.
            length: of the rows, in tokens.
            samples: other than the usual ones.
        """
        sample = {**self.sample(pattern, None, length)[0], **samples}
        size, projection, norm = pattern.width // formula.heads, formula.projections[0], formula.norms[0]
        raw = projection.of(sample[projection.layer.output]).reshape(self.probes.rows, length, -1)
        query = _by_head(raw, size)
        value = self.probes.evaluator(sample)(needed(pattern.operands)[0])
        result = rotation.by_head(value, size, length, False, self.probes.rows)
        return query if norm is None else norm.of(query), result


def _heads(pattern: AttentionPattern, evaluate: Evaluate, rows: int, length: int) -> int:
    root = pattern.root
    if root.op_type == "Attention":
        if "q_num_heads" in root.attributes:
            return root.attributes["q_num_heads"].as_int()
        return int(evaluate(needed(root.inputs[0])).shape[1])
    probabilities = evaluate(root.outputs[0])
    heads, remainder = divmod(probabilities.size, rows * length * length)
    if remainder or not heads:
        raise CannotFuse(f"its probabilities have shape {probabilities.shape} for {rows} rows of {length} tokens")
    return heads


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


def _largest_score(query: np.ndarray, key: np.ndarray, scale: float) -> float:
    key = np.repeat(key, query.shape[1] // key.shape[1], axis=1)
    return float(np.abs(query @ key.swapaxes(-1, -2) * scale).max())


def _summed(value: np.ndarray, attend: np.ndarray, heads: int) -> np.ndarray:
    """What queries without any key have if a key mask and a causal one are added up: the mean of the values that only
    one of them masks. Value (B, K, S, d), attend (B, S) -> (B, S, N d)."""
    batch, groups, length, size = value.shape
    once = ~Reach(causal=True).pairs(np.ones_like(attend)) ^ (attend == 0)[:, None, :]
    query, key = np.zeros((batch, heads, length, size)), np.zeros((batch, groups, length, size))
    return _attention(query, key, value, 1.0, once, np.zeros(()), functions.LOWEST)


def _error(result: np.ndarray, expected: np.ndarray) -> float:
    return float(np.abs(result - expected).max(initial=0.0))
