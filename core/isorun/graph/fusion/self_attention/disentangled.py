"""Disentangled attention (He et al., 2021): scores that depend on the content of one token and the distance to another.

Beside Q K^T, a score has ``Q[i] . keys[bucket(i - j)]`` and ``K[j] . queries[bucket(i - j)]``, or one of them, with the
same scale. Exporters write each as a product with a table of every bucket and ``GatherElements``. BERT's relative
positions (Shaw et al., 2018; Huang et al., 2020) are the same with one table for all heads and all terms, written as an
``Einsum`` with the table's row for each pair. Here the tables and the buckets are read; whether the attention computes
this is for the evaluation as a whole to tell.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from isorun.graph.analysis.evaluate import CannotEvaluate, Samples, ancestors, behind, is_constant, sizes
from isorun.graph.fusion.self_attention import distances
from isorun.graph.fusion.self_attention.pattern import AttentionPattern
from isorun.graph.io.nodes import needed
from isorun.graph.matching.probes import Probes
from isorun.graph.matching.report import CannotFuse
from isorun.graph.ops import positions

_SCALING = frozenset(("Cast", "Div", "Mul", "Reshape", "Squeeze", "Unsqueeze"))
_MAX_LENGTH = 1024  # a row of a table for each pair of longer rows needs gigabytes
_REPEATING = frozenset(("Cast", "Expand", "Identity", "Reshape", "Squeeze", "Tile", "Unsqueeze"))


@dataclass(frozen=True)
class Term:
    """One of the terms.

    Attributes:
        of_query: whether the tokens' part is of queries, and not of keys.
        table: the other part, a row for each bucket and head, (P, N, d).
        factor: what their product is multiplied by.
        buckets: the bucket of each distance between the token and the other, (2 M + 1) from -M to M.
        longest: the longest rows that it is defined for, in tokens; ``None`` for any.
    """

    of_query: bool
    table: np.ndarray
    factor: float
    buckets: np.ndarray
    longest: int | None = None


@dataclass(frozen=True)
class Disentangled:
    """The terms of an attention.

    Attributes:
        keys: a row for each bucket, (P, N d), which queries are multiplied with; zeros if the model has none.
        queries: the same, which keys are multiplied with.
        buckets: the bucket of each distance of a query behind a key, (2 M + 1) from -M to M; farther ones are alike.
        factors: what the products with each table are multiplied by.
        longest: the longest rows that the model accepts, in tokens; ``None`` for any.
    """

    keys: np.ndarray
    queries: np.ndarray
    buckets: np.ndarray
    factors: tuple[float, float]
    longest: int | None = None

    def scaled(self, scale: float) -> Disentangled:
        """The same with one factor, the scale of an attention."""
        keys, queries = (
            table if np.isclose(factor, scale, rtol=1e-5) else table * np.float32(factor / scale)
            for table, factor in zip((self.keys, self.queries), self.factors, strict=True)
        )
        return Disentangled(keys, queries, self.buckets, (scale, scale), self.longest)

    def bias(self, query: np.ndarray, key: np.ndarray) -> np.ndarray:
        """What scores get. Query and key (B, N, S, d) -> (B, N, S, S)."""
        length, farthest = query.shape[2], len(self.buckets) // 2
        behind = np.arange(length)[:, None] - np.arange(length)
        index = self.buckets[np.clip(behind, -farthest, farthest) + farthest][None, None]
        total = np.zeros((*query.shape[:3], length), np.float32)
        for table, factor, content, at in (
            (self.keys, self.factors[0], query, index),
            (self.queries, self.factors[1], key, index.swapaxes(-1, -2)),
        ):
            by_head = factor * table.reshape(len(table), query.shape[1], -1).transpose(1, 2, 0)
            term = np.take_along_axis(content @ by_head, np.broadcast_to(at, total.shape), -1)
            total += term if content is query else term.swapaxes(-1, -2)
        return total


def terms(pattern: AttentionPattern, size: int, probes: Probes, sample: Samples) -> Disentangled | None:
    """The terms of an attention; ``None`` if it is not disentangled.

    Args:
        pattern: the attention.
        size: of its heads.
        probes: evaluate the graph on samples.
        sample: for the inputs of the attention, at the first length; its first row has no padding.

    Raises:
        CannotFuse: something else gathers from its scores.
    """
    gathers = [node for node in pattern.inside if node.op_type == "GatherElements"]
    lookups = [(node, by_pair) for node in pattern.inside if (by_pair := _by_pair(node, pattern, probes)) is not None]
    all_terms = [_gathered(node, pattern, size, probes, sample) for node in gathers]
    all_terms += [_looked_up(node, by_pair, pattern, size, probes, sample) for node, by_pair in lookups]
    by_side = {term.of_query: term for term in all_terms}
    if len(by_side) < len(all_terms):
        raise CannotFuse("it gathers twice from products of its queries, or of its keys")
    if not by_side:
        return None
    none = np.zeros_like(next(iter(by_side.values())).table)
    keys, queries = (by_side[of_query].table if of_query in by_side else none for of_query in (True, False))
    buckets = [term.buckets if term.of_query else term.buckets[::-1] for term in by_side.values()]
    if not np.array_equal(buckets[0], buckets[-1]):
        raise CannotFuse("its queries and its keys have other buckets of distances")
    factors = {of_query: term.factor for of_query, term in by_side.items()}
    return Disentangled(
        keys.reshape(len(keys), -1),
        queries.reshape(len(queries), -1),
        buckets[0],
        (factors.get(True, 0.0), factors.get(False, 0.0)),
        min((term.longest for term in by_side.values() if term.longest is not None), default=None),
    )


def _by_pair(node: ir.Node, pattern: AttentionPattern, probes: Probes) -> ir.Value | None:
    """What a node multiplies one value with, a row for each pair of positions (S, S, d); ``None`` for other nodes."""
    if node.op_type != "Einsum" or len(node.inputs) != 2:
        return None
    projected = {layer.output for layer in pattern.layers}
    others = [value for value in node.inputs if value is not None and projected.isdisjoint(ancestors(value))]
    length = probes.lengths[0]
    is_by_pair = len(others) == 1 and pattern.evaluated(probes, others[0], length).shape[:-1] == (length, length)
    return others[0] if is_by_pair else None


def _looked_up(
    node: ir.Node, by_pair: ir.Value, pattern: AttentionPattern, size: int, probes: Probes, sample: Samples
) -> Term:
    """A product of queries or keys with the row of a table for each pair of positions."""
    content = needed(next(value for value in node.inputs if value is not by_pair))
    length = probes.lengths[0] if probes.fixed else (_longest_table(by_pair) + 1) // 2
    if not 0 < length <= _MAX_LENGTH:
        raise CannotFuse(
            f"its queries or its keys are multiplied with a row for each pair of positions, of a table for rows of "
            f"{length} tokens, and tables for 1 to {_MAX_LENGTH} are read"
        )
    table = _by_distance(pattern.evaluated(probes, by_pair, length))
    longer, longest = table, None
    try:
        if not probes.fixed:
            longer = _by_distance(pattern.evaluated(probes, by_pair, length + 1))
    except CannotEvaluate:  # beyond the table
        longest = length
    behind = np.arange(len(longer)) - len(longer) // 2
    if not np.array_equal(longer, table[np.clip(behind, 1 - length, length - 1) + length - 1]):
        raise CannotFuse(f"its distances of {length} and more are not alike")
    buckets = np.arange(len(table))
    of_query = _is_of_query(content, pattern)
    factor = _factor(node.outputs[0], content, pattern, probes, sample)
    by_head = np.repeat(table[:, None], pattern.width // size, axis=1)
    return Term(of_query, by_head, factor, buckets if of_query else buckets[::-1], longest)


def _gathered(node: ir.Node, pattern: AttentionPattern, size: int, probes: Probes, sample: Samples) -> Term:
    """A product of queries or keys with every row of a table, gathered for each pair of positions."""
    value, index = map(needed, node.inputs)
    product, index = behind(value, _SCALING).producer(), behind(index, _REPEATING)
    if product is None or product.op_type != "MatMul":
        raise CannotFuse(f"it gathers from {node.inputs[0]!r}, which is not a product with a table")
    content, table = map(needed, product.inputs)
    of_query = _is_of_query(content, pattern)
    if {layer.output for layer in pattern.layers} & set(ancestors(table)):
        raise CannotFuse("it multiplies its queries or its keys with more than a table")
    widths = {pattern.evaluated(probes, table, length).shape[-1] for length in probes.lengths}
    if len(widths) == 1:
        length = probes.lengths[0]
        rows = distances.along(probes, pattern, index)
    else:  # DeBERTa cuts the middle out of a table for distances to either side: all of it is read by rows this long
        length = _longest_table(table) // 2 + 2
        rows = distances.along(probes, pattern, index, (length,))
    if rows is None or rows.shape[1] != 1:
        raise CannotFuse(f"it gathers by {index.name!r}, which is not one index for each distance")
    by_head = pattern.evaluated(probes, table, length)
    if not 0 <= rows.min() <= rows.max() < by_head.shape[-1]:
        raise CannotFuse(f"it gathers by {index.name!r} from {by_head.shape[-1]} rows, up to number {rows.max():g}")
    by_head = by_head.reshape(-1, size, by_head.shape[-1])[: pattern.width // size]
    factor = _factor(product.outputs[0], content, pattern, probes, sample)
    return Term(of_query, np.ascontiguousarray(by_head.transpose(2, 0, 1)), factor, positions.trimmed(rows[:, 0]))


def _factor(product: ir.Value, content: ir.Value, pattern: AttentionPattern, probes: Probes, sample: Samples) -> float:
    """What a product with a table is multiplied by, from the dense layer to the scores: what is left of ones."""
    scores = needed(pattern.root.inputs[0])
    sample = {**sample, **{layer.output: np.ones_like(sample[layer.output]) for layer in pattern.layers}}
    evaluate = probes.evaluator(sample)
    before, ones = evaluate(content), np.ones_like(evaluate(product))
    with_ones, without = (probes.evaluator({**sample, product: factor * ones})(scores) for factor in (1, 0))
    after = with_ones.reshape(probes.rows, -1)[0] - without.reshape(probes.rows, -1)[0]  # of the row without padding
    if np.ptp(before) or np.ptp(after) > 1e-5 * np.abs(after).max():
        raise CannotFuse(f"{content.name!r}, which it multiplies with a table, is not its queries or keys")
    return float(before.flat[0] * after.mean())


def _by_distance(pairs: np.ndarray) -> np.ndarray:
    """What (S, S, d) is by distance, (2 S - 1, d)."""
    table = positions.along_distances(np.moveaxis(pairs, -1, 0))
    if table is None:
        raise CannotFuse(
            "its queries or its keys are multiplied with a row for each pair of positions, not each distance"
        )
    return table


def _longest_table(value: ir.Value) -> int:
    """The most rows that a table has among what a value is computed from."""
    constants = filter(is_constant, ancestors(value))
    return max((sizes(constant)[0] for constant in constants if len(sizes(constant)) == 2), default=0)


def _is_of_query(content: ir.Value, pattern: AttentionPattern) -> bool:
    """Whether a value is computed from queries from the dense layers on; if not, it is computed from keys."""
    if pattern.operands is None:
        raise CannotFuse("it has scores by distance, but no product of queries and keys")
    computed = {output for node in pattern.inside for output in node.outputs}
    computed |= {layer.output for layer in pattern.layers}
    query, key = (computed.intersection(ancestors(value)) for value in pattern.operands)
    of_query, of_key = (bool(own & set(ancestors(content))) for own in (query - key, key - query))
    if of_query == of_key:
        raise CannotFuse("it multiplies more than its queries or its keys with a table")
    return of_query
