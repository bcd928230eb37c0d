"""Where tokens stand: positions, and biases by distance, in the one spelling that fused graphs have.

The builder of checkpoints and the fusions both write them from here, so that a checkpoint and its export come to one
graph. Beside each graph is the same in NumPy, by which the fusions recognise it in an export.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from isorun.graph.ops.adding import Nodes

FARTHEST = 128  # a distance from which on all are in the last bucket


def row(op: Nodes, ids: ir.Value) -> ir.Value:
    """0, 1, 2 and so on for ids (B, S): (S) int64."""
    return op("Range", 0, op("Squeeze", op("Shape", ids, start=1, end=2)), 1)


def in_order(op: Nodes, ids: ir.Value) -> ir.Value:
    """Positions that are places: (1, S) int64."""
    return op("Unsqueeze", row(op, ids), [0])


def numbered(op: Nodes, value: ir.Value) -> ir.Value:
    """The numbers of a value's elements, counted from the first, in its shape: int64."""
    return op("Reshape", op("Range", 0, op("Size", value), 1), op("Shape", value))


def rotation(op: Nodes, positions: ir.Value, rates: ir.Value, dtype: ir.DataType) -> tuple[ir.Value, ir.Value]:
    """Cosines and sines of a rotation by position (Su et al., 2021): (n, r / 2) each.

    Args:
        op: where they are put.
        positions: the positions, such as :func:`row` gives: (n) integers.
        rates: the angle of each pair of dimensions from one position to the next, (r / 2) float32.
        dtype: the type of the results.
    """
    angles = op("Mul", op("Unsqueeze", op("Cast", positions, to=int(ir.DataType.FLOAT)), [1]), rates)
    cos, sin = op("Cos", angles), op("Sin", angles)
    if dtype == ir.DataType.FLOAT:
        return cos, sin
    return op("Cast", cos, to=int(dtype)), op("Cast", sin, to=int(dtype))


def counted(op: Nodes, ids: ir.Value, padding: int) -> ir.Value:
    """Positions that count the ids that are no padding, for ids (B, S) int64: (B, S) int64.

    The n-th of them, counted from 1, has the position n + padding; padding has the position padding.
    """
    is_real = op("Cast", op("Not", op("Equal", ids, padding)), to=ir.DataType.INT32.value)
    number = op("Mul", op("CumSum", is_real, 1), is_real)
    return op("Add", op("Cast", number, to=ir.DataType.INT64.value), padding)


def counted_array(ids: np.ndarray, padding: int) -> np.ndarray:
    """What :func:`counted` gives."""
    token = ids != padding
    return np.asarray(np.cumsum(token, axis=1) * token + padding)


def distances(op: Nodes, ids: ir.Value) -> ir.Value:
    """How far a query is behind a key, for ids (B, S): (S, S) int64."""
    positions = row(op, ids)
    return op("Sub", op("Unsqueeze", positions, [1]), op("Unsqueeze", positions, [0]))


def relative_bias(op: Nodes, ids: ir.Value, table: ir.Value, farthest: int) -> ir.Value:
    """What scores get by the distance of query and key, for ids (B, S): (1, N, S, S).

    Args:
        op: where it is put.
        ids: has the length.
        table: a number for each distance from -farthest to farthest and each head, (2 farthest + 1, N).
        farthest: a distance from which on nothing changes.
    """
    rows = op("Add", op("Clip", distances(op, ids), -farthest, farthest), farthest)
    return op("Unsqueeze", op("Transpose", op("Gather", table, rows, axis=0), perm=[2, 0, 1]), [0])


def linear_bias(op: Nodes, ids: ir.Value, slopes: ir.Value) -> ir.Value:
    """What scores get in proportion to the distance (ALiBi; Press et al., 2022), for ids (B, S): (1, N, S, S).

    Args:
        op: where it is put.
        ids: has the length.
        slopes: one for each head, (1, N, 1, 1).
    """
    assert slopes.dtype is not None
    return op("Mul", op("Cast", op("Abs", distances(op, ids)), to=int(slopes.dtype)), slopes)


def buckets(count: int, farthest: int = FARTHEST) -> np.ndarray:
    """The bucket of each distance of :func:`distances` (Raffel et al., 2020), those beyond the last change left out.

    Half of the buckets are for keys behind the query. In each half, the first half has a bucket a distance, the
    rest widen logarithmically up to a distance of ``farthest``.
    """
    half, exact = count // 2, count // 4
    behind = np.arange(-4 * farthest, 4 * farthest + 1)  # most of them for trimmed() to leave out
    distance = np.abs(behind)
    ratio = np.maximum(distance, exact).astype(np.float32) / np.float32(exact)
    grown = np.log(ratio) / np.float32(np.log(farthest / exact)) * np.float32(half - exact)
    bucket = np.where(distance < exact, distance, np.minimum(grown.astype(np.int64) + exact, half - 1))
    return trimmed(bucket + np.where(behind < 0, half, 0))


def log_buckets(count: int, farthest: int) -> np.ndarray:
    """The bucket of each distance of :func:`distances` (He et al., 2021), those beyond the last change left out: int64.

    There are ``count`` buckets for either side, with one a distance up to half of them; the rest widen logarithmically
    up to a distance of ``farthest``. With 0, each distance has its own, ``farthest`` of them for either side.
    """
    span = count or farthest
    behind = np.arange(-4 * farthest, 4 * farthest + 1)
    bucket = behind
    if count:
        middle = count // 2
        distance = np.maximum(np.abs(behind), middle - 1).astype(np.float32)
        share = np.log(distance / np.float32(middle)) / np.log(np.float32((farthest - 1) / middle))
        grown = np.ceil(share * np.float32(middle - 1)) + middle
        bucket = np.where(np.abs(behind) <= middle, behind, (grown * np.sign(behind)).astype(np.int64))
    return trimmed(np.clip(bucket + span, 0, 2 * span - 1))


def along_distances(squares: np.ndarray) -> np.ndarray | None:
    """What (..., S, S) is by distance, (2 S - 1, ...) from -(S - 1) to S - 1; ``None`` if it depends on more."""
    length = squares.shape[-1]
    rows = np.concatenate([squares[..., 0, :0:-1], squares[..., :, 0]], axis=-1)
    index = np.arange(length)[:, None] - np.arange(length) + length - 1
    return np.moveaxis(rows, -1, 0) if np.array_equal(rows[..., index], squares) else None


def alibi_slopes(heads: int) -> np.ndarray:
    """What each unit of distance lowers the scores of each head by (Press et al., 2022): (N) float32.

    A geometric sequence; between powers of two, followed by every other one of the next power's.
    """
    power = 1 << (heads.bit_length() - 1)
    ratio = 2.0 ** (-8 / power)
    own = ratio ** np.arange(1, power + 1)
    more = alibi_slopes(2 * power)[::2][: heads - power] if heads > power else own[:0]
    return np.concatenate([own, more]).astype(np.float32)


def slopes(rows: np.ndarray) -> np.ndarray | None:
    """What each unit of distance adds to a bias by distance, (N); ``None`` if it is not proportional to it."""
    farthest = len(rows) // 2
    slope = rows[farthest + 1]
    linear = np.abs(np.arange(-farthest, farthest + 1))[:, None] * slope
    return slope if slope.all() and np.allclose(rows, linear, rtol=1e-6, atol=0) else None


def trimmed(rows: np.ndarray) -> np.ndarray:
    """A table by distance without the farthest ones, which are alike on either side; all of it if they are less than
    half."""
    farthest, flat = len(rows) // 2, rows.reshape(len(rows), -1)
    differs = ((flat != flat[0]) | (flat[::-1] != flat[-1])).any(axis=1)[:farthest]
    first = int(differs.argmax() if differs.any() else farthest) - 1
    return rows[first : len(rows) - first] if 2 * first > farthest else rows
