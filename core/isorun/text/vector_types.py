"""Vectors of one byte or one bit for a value, as ``quantize_embeddings`` of sentence-transformers makes them."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from isorun.errors import InvalidArgument
from isorun.system.arguments import check_choice

INT8, UINT8, BINARY, UBINARY = KINDS = ("int8", "uint8", "binary", "ubinary")
BITS = (BINARY, UBINARY)
_PACKED = 8  # bits to a byte
DTYPES = {"": "<f4", INT8: "i1", UINT8: "u1", BINARY: "i1", UBINARY: "u1"}
"""The type of each kind's values, or bytes of bits; ``""`` is float32."""


def check(kind: str | None, ranges: Any, dimension: int) -> npt.NDArray[np.float32] | None:
    """The ranges of a kind as an array.

    Args:
        kind: one of :data:`KINDS`, or ``None`` for float32.
        ranges: (2, dimension), the least and the greatest value of each dimension; ``None`` for bits.
        dimension: the number of values of a vector.

    Raises:
        InvalidArgument: the kind is unknown, it needs ranges or has none, or they do not fit.
    """
    if kind is None:
        if ranges is not None:
            raise InvalidArgument("ranges has no effect without quantize='int8' or 'uint8'. Omit it")
        return None
    check_choice(kind, "quantize", KINDS)
    if kind in BITS:
        if ranges is not None:
            raise InvalidArgument(f"ranges has no effect with quantize={kind!r}, which keeps signs. Omit it")
        if dimension % _PACKED:
            raise InvalidArgument(f"quantize={kind!r} needs a dimension that is a multiple of 8, got {dimension}")
        return None
    if ranges is None:
        raise InvalidArgument(
            f"quantize={kind!r} needs ranges: np.stack([vectors.min(0), vectors.max(0)]) of the vectors of typical "
            "texts, kept with the index"
        )
    try:
        array = np.asarray(ranges, np.float32)
    except (TypeError, ValueError) as error:
        raise InvalidArgument(f"ranges must be numbers of shape (2, {dimension}), got {ranges!r}") from error
    if array.shape != (2, dimension):
        raise InvalidArgument(f"ranges must have shape (2, {dimension}), got {array.shape}")
    if not np.isfinite(array).all() or not (array[0] < array[1]).all():
        raise InvalidArgument("ranges must be finite, the first row below the second in every dimension")
    return array


def quantized(vectors: npt.NDArray[np.float32], kind: str, ranges: npt.NDArray[np.float32] | None) -> npt.NDArray[Any]:
    """Vectors in a kind.

    Bytes are 256 steps from the least to the greatest value of a dimension, rounded down as sentence-transformers has
    done since its version 6; values beyond are cut to them. Bits are 1
    for positive values, eight to a byte; ``binary`` has the bytes less 128, as int8.

    Args:
        vectors: (count, width), float32.
        kind: one of :data:`KINDS`.
        ranges: from :func:`check`, (2, width or more).

    Returns:
        (count, width), or (count, width / 8) of bits.
    """
    if ranges is None:
        packed = np.packbits(vectors > 0, axis=-1)
        return (packed.astype(np.int16) - 128).astype(np.int8) if kind == BINARY else packed
    low, high = ranges[0, : vectors.shape[-1]], ranges[1, : vectors.shape[-1]]
    steps: npt.NDArray[np.float32] = np.clip(np.floor((vectors - low) / ((high - low) / 255)), 0, 255)
    return (steps - 128).astype(np.int8) if kind == INT8 else steps.astype(np.uint8)


def from_bytes(content: bytes, kind: str, shape: tuple[int, int]) -> npt.NDArray[np.float32]:
    """What a search compares: the numbers of vectors in a kind, and 1 and -1 for bits, whose cosine falls with the
    number of bits that differ.

    Args:
        content: the bytes of the vectors.
        kind: a key of :data:`DTYPES`.
        shape: (count, dimension).

    Raises:
        KeyError: there is no such kind.
        ValueError: there are not as many bytes, or a value is not finite.
    """
    stored = np.frombuffer(content, DTYPES[kind])
    if not np.isfinite(stored).all():
        raise ValueError("not all values are finite")
    if kind in BITS:
        less = 128 if kind == BINARY else 0
        stored = np.unpackbits((stored.astype(np.int16) + less).astype(np.uint8)).astype(np.float32) * 2 - 1
    return stored.astype(np.float32).reshape(shape)
