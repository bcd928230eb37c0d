"""What happens to queries and keys between their dense layers and the product of the two: RMS normalization of each
head, rotation by position, and a factor.

The values are evaluated on random projections. Since they are linear in what was normalized, and act on pairs of
dimensions of a head, cosines and sines follow by least squares; a residual means that something else was computed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import onnx_ir as ir

from isorun.graph.analysis.evaluate import HALVES, ancestors, array, data_inputs, is_constant, sizes
from isorun.graph.fusion.self_attention.pattern import AttentionPattern
from isorun.graph.io.nodes import needed
from isorun.graph.matching import subgraph
from isorun.graph.matching.probes import Probes
from isorun.graph.matching.report import CannotFuse
from isorun.graph.ops import functions

TOLERANCE = 2e-5
"""The largest error of what is evaluated in fp32, relative to the largest number."""
LONG_LENGTH = 300
"""A length at which rates of rotation that differ give different angles."""
_MAX_TABLE = 1 << 14  # rows of a table of rotations


@dataclass(frozen=True)
class Norm:
    """The RMS normalization of each head: its weight (d) and epsilon."""

    gamma: ir.Value
    epsilon: float

    def of(self, x: np.ndarray) -> np.ndarray:
        root = np.sqrt(np.square(x).mean(-1, keepdims=True) + self.epsilon)
        return np.asarray(x / root * array(self.gamma), np.float32)


@dataclass(frozen=True)
class Turn:
    """A rotation by position, or none, and a factor.

    Attributes:
        factor: what queries or keys are multiplied by.
        size: how many dimensions of a head are rotated; 0 for none.
        interleaved: whether pairs are neighbours, rather than half of these dimensions apart.
        cos, sin: (S, size / 2), or (B, 1, S, size / 2).
    """

    factor: float
    size: int = 0
    interleaved: bool = False
    cos: np.ndarray = field(default_factory=lambda: np.zeros((0, 0)))
    sin: np.ndarray = field(default_factory=lambda: np.zeros((0, 0)))

    def by_rates(self, rates: np.ndarray, length: int = LONG_LENGTH) -> Turn:
        """The rotation by each position up to a length, by these angles from one to the next."""
        angles = np.arange(length, dtype=np.float32)[:, None] * rates
        return replace(self, cos=np.cos(angles), sin=np.sin(angles))

    def like(self, other: Turn) -> bool:
        """Whether another rotates alike, whatever its factor."""
        return (self.size, self.interleaved) == (other.size, other.interleaved) and all(
            table.shape == two.shape and np.allclose(table, two, atol=TOLERANCE)
            for table, two in ((self.cos, other.cos), (self.sin, other.sin))
        )

    def of(self, x: np.ndarray) -> np.ndarray:
        """Rotate x (B, N, S, d)."""
        if not self.size:
            return x
        first, second = _pairs(x, self.size, self.interleaved)
        both = first * self.cos - second * self.sin, second * self.cos + first * self.sin
        stacked = np.stack(both, -1 if self.interleaved else -2)
        turned = stacked.reshape(*x.shape[:-1], self.size)
        return np.concatenate([turned, x[..., self.size :]], -1).astype(np.float32)


def norms(pattern: AttentionPattern, head_size: int) -> tuple[Norm | None, Norm | None]:
    """The normalizations of queries and of keys.

    Raises:
        CannotFuse: there is another than an RMS normalization by head, or one of queries and another one of keys.
    """
    if pattern.operands is None:
        return None, None
    query, key = (_norm(value, pattern, head_size) for value in pattern.operands)
    if (query and query.epsilon) != (key and key.epsilon):
        raise CannotFuse("its queries and keys are normalized in different ways")
    return query, key


def _norm(value: ir.Value, pattern: AttentionPattern, head_size: int) -> Norm | None:
    for ancestor in ancestors(value, frozenset(layer.output for layer in pattern.layers)):
        node = ancestor.producer()
        if node is None or node not in pattern.inside:
            continue
        if functions.is_fused(node, functions.RMS_NORM):
            gamma = needed(node.inputs[1])
            if sizes(gamma) != (head_size,):
                raise CannotFuse(
                    f"its queries or keys are normalized over {sizes(gamma)[-1]} values, not by head of {head_size}"
                )
            return Norm(gamma, node.attributes["epsilon"].as_float())
        if node.op_type == "LayerNormalization":
            raise CannotFuse("its queries or keys have a layer normalization: only RMS normalization is supported")
    return None


def fit(raw: np.ndarray, result: np.ndarray, sizes: Sequence[int], tolerance: float = TOLERANCE) -> Turn | None:
    """The rotation and factor that make one value of another, (B, N, S, d) each; ``None`` if there is none.

    Args:
        raw: before.
        result: after.
        sizes: how many dimensions of a head may be rotated.
        tolerance: the largest error, relative to the largest number.
    """
    factor = float((raw[:, :, 0] * result[:, :, 0]).sum() / np.square(raw[:, :, 0]).sum())
    most = tolerance * float(np.abs(result).max())
    if np.abs(result - factor * raw).max() <= most:
        return Turn(factor)
    for turned in sizes:
        for interleaved in (False, True):
            first, second = _pairs(raw, turned, interleaved)
            first_part, two = _pairs(result, turned, interleaved)
            total = (np.square(first) + np.square(second)).sum((0, 1))
            cos = (first * first_part + second * two).sum((0, 1)) / total
            sin = (first * two - second * first_part).sum((0, 1)) / total
            scale = float(np.hypot(cos[0], sin[0]).mean())
            if scale < 1e-6:
                continue
            turn = Turn(scale, turned, interleaved, cos / scale, sin / scale)
            if np.abs(result - scale * turn.of(raw)).max() < most:
                return turn
    return None


def _pairs(x: np.ndarray, size: int, interleaved: bool) -> tuple[np.ndarray, np.ndarray]:
    if interleaved:
        return x[..., 0:size:2], x[..., 1:size:2]
    return x[..., : size // 2], x[..., size // 2 : size]


def rates(pattern: AttentionPattern, turn: Turn) -> Iterator[np.ndarray]:
    """Constants that may be the angles by which each pair is turned from one position to the next, (size / 2)."""
    half = turn.size // 2
    for side in pattern.turns:
        for value in ancestors(side):
            if is_constant(value) and np.prod(sizes(value)) == half and value.dtype in (ir.DataType.FLOAT, *HALVES):
                rates = array(value).reshape(-1).astype(np.float32)
                for rate in (rates, -rates):
                    angles = np.arange(len(turn.cos), dtype=np.float32)[:, None] * rate
                    both = ((np.cos(angles), turn.cos), (np.sin(angles), turn.sin))
                    if all(np.allclose(table, expected, atol=TOLERANCE) for table, expected in both):
                        yield rate


def shortest(pattern: AttentionPattern, turn: Turn) -> Turn:
    """A rotation without the pairs at the end that have no angle: where pairs are neighbours, that of a part of a head
    looks like one of the whole head."""
    if not turn.interleaved or next(rates(pattern, turn), None) is not None:
        return turn
    for size in range(2, turn.size, 2):
        cos, sin = np.split(turn.cos, (size // 2,), -1), np.split(turn.sin, (size // 2,), -1)
        part = replace(turn, size=size, cos=cos[0], sin=sin[0])
        is_rest_still = np.allclose(cos[1], 1, atol=TOLERANCE) and np.allclose(sin[1], 0, atol=TOLERANCE)
        if is_rest_still and next(rates(pattern, part), None) is not None:
            return part
    return turn


def given_positions(pattern: AttentionPattern) -> ir.Value | None:
    """What queries and keys are rotated by if it is not the position in the row: integers, (B, S).

    It is the last such value on which all of the rotation depends: an input, or counted from one.

    Raises:
        CannotFuse: they depend on data in another way.
    """
    sides = [side for side in pattern.turns if data_inputs(side)]
    if not sides:
        return None
    for value in ancestors(sides[0]):
        is_whole = value.dtype in (ir.DataType.INT32, ir.DataType.INT64) and subgraph.rank(value) == 2
        if is_whole and data_inputs(value) and not any(data_inputs(side, frozenset((value,))) for side in sides):
            return value
    names = ", ".join(sorted({repr(source.name) for side in sides for source in data_inputs(side)}))
    raise CannotFuse(f"its queries and keys depend on {names}, and not on their positions alone")


def table_length(pattern: AttentionPattern, probes: Probes) -> int:
    """The length up to which a table of rotations goes: the graph's own, or that of the tables that it slices."""
    if probes.fixed and pattern.positions is None:
        return probes.lengths[0]
    rows = [
        sizes(value)[-2]
        for side in pattern.turns
        for value in ancestors(side)
        if is_constant(value) and len(sizes(value)) >= 2 and sizes(value)[-2] > max(probes.lengths)
    ]
    if not rows:
        raise CannotFuse("the angles of its rotation are not proportional to the position, nor read from a table")
    if min(rows) > _MAX_TABLE:
        raise CannotFuse(f"expected a table of rotations with at most {_MAX_TABLE} rows, got {min(rows)}")
    return min(rows)


def by_head(value: np.ndarray, size: int, length: int, transposed: bool, rows: int) -> np.ndarray:
    """Queries or keys as their product reads them, (B, N, S, d).

    Raises:
        CannotFuse: they are not one per token.
    """
    if value.size % (rows * length * size):
        raise CannotFuse(f"its queries or keys have shape {value.shape} for {rows} rows of {length} tokens")
    if transposed:
        return value.reshape(rows, -1, size, length).swapaxes(-1, -2)
    if value.ndim == 3 and value.shape[-1] != size:  # (B, S, N d)
        return value.reshape(rows, length, -1, size).swapaxes(1, 2)
    return value.reshape(rows, -1, length, size)
