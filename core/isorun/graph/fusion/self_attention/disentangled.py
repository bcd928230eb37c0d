"""Disentangled attention (He et al., 2021): scores that depend on the content of one token and the distance to another.

Beside Q K^T, a score has ``Q[i] . keys[bucket(i - j)]`` and ``K[j] . queries[bucket(i - j)]``, or one of them, with the
same scale. Exporters write each as a product with a table of every bucket and ``GatherElements``. Here the tables and
the buckets are read; whether the attention computes this is for the evaluation as a whole to tell.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from isorun.graph.analysis.evaluate import ancestors
from isorun.graph.fusion.self_attention import distances
from isorun.graph.fusion.self_attention.pattern import AttentionPattern
from isorun.graph.matching.probes import Probes
from isorun.graph.matching.report import CannotFuse
from isorun.graph.matching.subgraph import DenseLayer
from isorun.graph.ops import positions

_SCALING = frozenset(("Cast", "Div", "Mul", "Reshape", "Squeeze", "Unsqueeze"))
_REPEATING = frozenset(("Cast", "Expand", "Identity", "Reshape", "Squeeze", "Tile", "Unsqueeze"))


@dataclass(frozen=True)
class Term:
    """One of the terms.

    Attributes:
        layer: the dense layer that computes the tokens' part, queries or keys.
        table: the other part, a row for each bucket and head, (P, N, d).
        buckets: the bucket of each distance between the token and the other, (2 M + 1) from -M to M.
    """

    layer: DenseLayer
    table: np.ndarray
    buckets: np.ndarray


@dataclass(frozen=True)
class Disentangled:
    """The terms of an attention.

    Attributes:
        keys: a row for each bucket, (P, N d), which queries are multiplied with; zeros if the model has none.
        queries: the same, which keys are multiplied with.
        buckets: the bucket of each distance of a query behind a key, (2 M + 1) from -M to M; farther ones are alike.
    """

    keys: np.ndarray
    queries: np.ndarray
    buckets: np.ndarray

    def bias(self, query: np.ndarray, key: np.ndarray) -> np.ndarray:
        """What scores get, before their scale. Query and key (B, N, S, d) -> (B, N, S, S)."""
        length, farthest = query.shape[2], len(self.buckets) // 2
        behind = np.arange(length)[:, None] - np.arange(length)
        index = self.buckets[np.clip(behind, -farthest, farthest) + farthest][None, None]
        total = np.zeros((*query.shape[:3], length), np.float32)
        for table, content, at in ((self.keys, query, index), (self.queries, key, index.swapaxes(-1, -2))):
            by_head = table.reshape(len(table), query.shape[1], -1).transpose(1, 2, 0)
            term = np.take_along_axis(content @ by_head, np.broadcast_to(at, total.shape), -1)
            total += term if content is query else term.swapaxes(-1, -2)
        return total


@dataclass(frozen=True)
class Terms:
    """All terms of an attention, as far as they are told by structure."""

    found: tuple[Term, ...]

    def __bool__(self) -> bool:
        return bool(self.found)

    def of(self, query: DenseLayer, key: DenseLayer) -> Disentangled | None:
        """The terms of queries and keys from these layers; ``None`` if they have others, or other buckets."""
        by_layer = {id(term.layer): term for term in self.found}
        of_query, of_key = by_layer.pop(id(query), None), by_layer.pop(id(key), None)
        either = of_query or of_key
        if by_layer or either is None:
            return None
        buckets = of_query.buckets if of_query else either.buckets[::-1]
        if of_key and not np.array_equal(of_key.buckets[::-1], buckets):
            return None
        none = np.zeros_like(either.table)
        keys, queries = (none if term is None else term.table for term in (of_query, of_key))
        return Disentangled(keys.reshape(len(keys), -1), queries.reshape(len(queries), -1), buckets)


def terms(pattern: AttentionPattern, size: int, probes: Probes) -> Terms:
    """The terms of an attention with heads of a size; empty if it is not disentangled.

    Raises:
        CannotFuse: something else gathers from its scores.
    """
    nodes = [node for node in pattern.inside if node.op_type == "GatherElements"]
    return Terms(tuple(_term(node, pattern, size, probes) for node in nodes))


def _term(node: ir.Node, pattern: AttentionPattern, size: int, probes: Probes) -> Term:
    projections = {layer.output: layer for layer in pattern.layers}
    value, index = node.inputs
    while value is not None and (producer := value.producer()) is not None and producer.op_type in _SCALING:
        value = producer.inputs[0]
    product = None if value is None else value.producer()
    if product is None or product.op_type != "MatMul" or index is None:
        raise CannotFuse(f"it gathers from {node.inputs[0]!r}, which is not a product with a table")
    content, table = product.inputs
    assert content is not None
    assert table is not None
    sources = [layer for output, layer in projections.items() if output in ancestors(content)]
    if len(sources) != 1 or set(projections) & set(ancestors(table)):
        raise CannotFuse("it gathers from a product of more than its queries or its keys with a table")
    while (producer := index.producer()) is not None and producer.op_type in _REPEATING and producer.inputs[0]:
        index = producer.inputs[0]
    rows = distances.along(probes, pattern.around, index)
    if rows is None or rows.shape[1] != 1:
        raise CannotFuse(f"it gathers by {index.name!r}, which is not one index for each distance")
    length = probes.lengths[0]
    samples = {**probes.feeds(length), **pattern.around(probes.rows, length)}
    by_head = probes.evaluator(samples)(table)
    by_head = by_head.reshape(-1, size, by_head.shape[-1])[: pattern.width // size]
    return Term(sources[0], np.ascontiguousarray(by_head.transpose(2, 0, 1)), positions.trimmed(rows[:, 0]))
