"""The shapes in which a backend that compiles one shape at a time runs requests.

Numbers of rows and lengths are rounded up to a small set, where that is exact: where rows are independent, and where
padding on the right does not change a row. Padding is 0, its mask included; missing rows are copies of the last one.
Requests of more rows than the largest of the set are split. All other sizes stay as they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from isorun.compilation.padding import unproven_output
from isorun.errors import InvalidFeeds
from isorun.types import Feeds, ModelInfo, StaticShapes


class Bucket(NamedTuple):
    """A shape of all inputs that are fed.

    Attributes:
        batch, length: the sizes that are rounded; 0 for one that is not.
        shapes: of each input, with 0 at dimensions that are rounded.
    """

    batch: int
    length: int
    shapes: tuple[tuple[str, tuple[int, ...]], ...]

    def contains(self, other: Bucket, *, longer: bool) -> bool:
        """Whether requests of another bucket, whose rows may be padded if ``longer``, can run in this one."""
        fits = self.length >= other.length if longer else self.length == other.length
        return fits and self.batch >= other.batch and self.shapes == other.shapes

    def __str__(self) -> str:
        if self.batch and self.length:
            return f"{self.batch}x{self.length}"
        rounded = self.batch or self.length
        return " ".join(f"{name}{[size or rounded for size in shape]}" for name, shape in self.shapes)


class Part(NamedTuple):
    """Rows of a request that run together.

    Attributes:
        rows: their numbers; ``None`` for all.
        length: that of the feeds; 0 if it is not rounded.
        bucket: the smallest shape that they fit.
        longer: whether they may be padded to a longer shape.
    """

    rows: np.ndarray | None
    length: int
    bucket: Bucket
    longer: bool


class Buckets:
    """Rounds the shapes of a model's requests.

    Attributes:
        exact: why a size is not rounded, by ``batch`` and ``length``.
        by_row, by_token: the inputs and outputs whose first axis are rows, and whose second axis are tokens.
    """

    def __init__(self, backend: str, static: StaticShapes, info: ModelInfo) -> None:
        self._backend, self._static = backend, static
        self._info, self._specs, self._mask = info, info.inputs, info.mask or ""
        batch, no_batch = _batch(info)
        length, no_length = _length(info)
        self.exact: dict[str, str] = {name: why for name, why in (("batch", no_batch), ("length", no_length)) if why}
        limits = [limit for limit in (static.max_length, info.limits.get(length)) if limit is not None]
        self._longest = min(limits, default=None)
        self.by_row: set[str] = {spec.name for spec in (*info.inputs, *info.outputs) if batch}
        self.by_row -= {spec.name for spec in info.inputs if not spec.shape or spec.shape[0] != batch}
        self._unfixed = [spec.name for spec in info.inputs if spec.shape and not isinstance(spec.shape[0], int)]
        lengths = {spec.name for spec in info.inputs if spec.shape is not None and length in spec.shape[1:2]}
        self.by_token: set[str] = lengths | set(info.token_outputs or ()) if length else set()

    def first(self) -> Bucket | None:
        """The smallest bucket; ``None`` if it is unknown."""
        shapes = []
        for spec in self._specs:
            sizes = self._sized(spec.name, spec.shape or (None,) * (spec.shape is None), 0, 0)
            if not all(isinstance(size, int) for size in sizes):
                return None
            shapes.append((spec.name, sizes))
        batch = self._static.batches[0] if self.by_row else 0
        return Bucket(batch, self._round(1) if self.by_token else 0, tuple(shapes))

    def parts(self, feeds: Feeds) -> list[Part]:
        """The parts of a request. Raises ``InvalidFeeds`` if the backend does not support so many rows, or rows of this
        length."""
        rows, length = self._size(feeds, self.by_row, 0), self._size(feeds, self.by_token, 1)
        self._check_limits(feeds, rows)
        rounded = [None if size is None else 0 for size in (rows, length)]
        shapes = tuple(
            (spec.name, self._sized(spec.name, feeds[spec.name].shape, *rounded))
            for spec in self._specs
            if spec.name in feeds
        )
        parts, largest = [], self._static.batches[-1]
        for numbers, bucket_length, longer in self._groups(feeds, rows, length):
            if numbers is None:
                parts.append(Part(None, length or 0, Bucket(0, bucket_length, shapes), longer))
                continue
            for start in range(0, max(1, len(numbers)), largest):
                chunk = numbers[start : start + largest]
                batch = next(size for size in self._static.batches if size >= len(chunk))
                parts.append(Part(chunk, length or 0, Bucket(batch, bucket_length, shapes), longer))
        return parts

    def shapes(self, bucket: Bucket) -> dict[str, tuple[int, ...]]:
        """The shape of each input in a bucket."""
        batch, length = bucket.batch or None, bucket.length or None
        return {name: self._sized(name, exact, batch, length) for name, exact in bucket.shapes}

    def padded(self, feeds: Feeds, part: Part, bucket: Bucket) -> dict[str, np.ndarray]:
        """The feeds of a part in the shape of a bucket."""
        padded = {}
        for name, shape in self.shapes(bucket).items():
            array = feeds[name]
            if part.rows is not None and name in self.by_row and len(part.rows) != len(array):
                array = array[part.rows]
            if array.shape != shape:
                array = _pad(array, shape, self._info.padding_of(name), repeat=name in self.by_row)
            padded[name] = array
        return padded

    def cut(self, name: str, result: np.ndarray, part: Part) -> np.ndarray:
        """An output without padding."""
        kept = result
        if part.rows is not None and name in self.by_row:
            kept = kept[: len(part.rows)]
        if part.length and name in self.by_token:
            kept = kept[:, : part.length]
        return kept if kept.shape == result.shape else kept.copy()

    def _groups(
        self, feeds: Feeds, rows: int | None, length: int | None
    ) -> Iterator[tuple[np.ndarray | None, int, bool]]:
        """The rows that run in one length, that length, and whether it may be exceeded."""
        every = None if rows is None else np.arange(rows)
        if length is None:
            yield every, 0, False
            return
        rounded = self._round(length)
        kept = self._info.may_be_padded(self._info.attended(feeds))
        if kept.all():
            yield every, rounded, True
        elif rounded == length or every is None or not kept.any():
            yield every, length, False
        else:
            yield np.flatnonzero(kept), rounded, True
            yield np.flatnonzero(~kept), length, False

    def _size(self, feeds: Feeds, names: set[str], axis: int) -> int | None:
        """The common size of inputs; ``None`` if it is not rounded."""
        inputs = [spec.name for spec in self._specs if spec.name in names]
        sizes = {feeds[name].shape[axis] if name in feeds else None for name in inputs}
        return sizes.pop() if len(sizes) == 1 else None

    def _sized(self, name: str, shape: Sequence[Any], batch: int | None, length: int | None) -> tuple[Any, ...]:
        """The shape of an input with other sizes where they are rounded; ``None`` for the size that it has."""
        sizes = list(shape)
        if batch is not None and name in self.by_row:
            sizes[0] = batch
        if length is not None and name in self.by_token:
            sizes[1] = length
        return tuple(sizes)

    def _round(self, length: int) -> int:
        lengths, longest = self._static.lengths, self._longest
        above = -(-length // lengths[-1]) * lengths[-1]
        rounded = next((size for size in lengths if size >= length), above)
        return rounded if longest is None else min(rounded, longest)

    def _check_limits(self, feeds: Feeds, rows: int | None) -> None:
        static = self._static
        limits = [(name, 1, static.max_length, "tokens", "Truncate the rows") for name in {*self.by_token, self._mask}]
        if rows is None:
            limits += [(name, 0, static.max_batch, "rows", "Split the batch") for name in self._unfixed]
        for name, axis, maximum, what, remedy in limits:
            if maximum is not None and name in feeds and feeds[name].shape[axis] > maximum:
                raise InvalidFeeds(
                    f"Input {name!r}: {self._backend} compiles shapes of at most {maximum} {what}, got "
                    f"{feeds[name].shape[axis]}. {remedy}, or use another backend"
                )


def _pad(array: np.ndarray, shape: tuple[int, ...], padding: int, *, repeat: bool) -> np.ndarray:
    """An array in a larger shape: padding after the end of a row, and copies of the last row."""
    padded = np.full(shape, "" if array.dtype == object else padding, array.dtype)
    padded[tuple(slice(size) for size in array.shape)] = array
    if repeat and len(array):
        padded[len(array) :] = padded[len(array) - 1]
    return padded


def _batch(info: ModelInfo) -> tuple[str, str]:
    """The symbol of independent rows, or why there is none."""
    if info.mixes_rows:
        return "", f"a row's results depend on the others ({info.mixes_rows})"
    symbols = {spec.shape[0] for spec in info.inputs if spec.shape and isinstance(spec.shape[0], str)}
    unknown = any(None in (spec.shape or (None,) * (spec.shape is None)) for spec in info.inputs)
    if len(symbols) != 1 or unknown:
        return "", "the inputs have no first dimension of one name"
    symbol = symbols.pop()
    token_outputs = info.token_outputs or ()
    for spec in (*info.inputs, *info.outputs):
        if symbol in (spec.shape or ())[1:]:
            return "", f"{spec.name!r} has the batch at another dimension than the first"
    for spec in info.outputs:
        if spec.name not in token_outputs and (not spec.shape or spec.shape[0] != symbol):
            return "", f"the output {spec.name!r} does not declare a row for each row of the inputs"
    return str(symbol), ""


def _length(info: ModelInfo) -> tuple[str, str]:
    """The symbol of a length that may be padded, or why there is none."""
    if info.keeps_padding or info.mask is None:
        return "", info.keeps_padding or "the mask is not one of the model's inputs"
    if unproven := unproven_output(info):
        return "", f"the output {unproven!r} may have a value for each token"
    shape = next(spec.shape for spec in info.inputs if spec.name == info.mask)
    symbol = shape[1] if shape is not None and len(shape) == 2 else None
    if not isinstance(symbol, str):
        return "", "the length of the mask is not symbolic"
    for spec in info.inputs:
        if symbol in (spec.shape or ())[:1] or symbol in (spec.shape or ())[2:]:
            return "", f"{spec.name!r} has the length at another dimension than the second"
    return symbol, ""
