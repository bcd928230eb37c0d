"""Seeded feeds for a model: random where the model lets them be, padded as a mask says.

Every function here is given its random generator: one seed, one set of feeds, on any machine.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from statistics import NormalDist

import numpy as np

from isorun.errors import InvalidFeeds
from isorun.types import ModelInfo, TensorSpec

SEGMENT_INPUT = "token_type_ids"


def right_padded(lengths: Sequence[int] | np.ndarray, sequence: int) -> np.ndarray:
    """The mask of rows that hold their real tokens first: (batch, sequence), int64, 1 at real tokens."""
    return (np.arange(sequence) < np.asarray(lengths)[:, None]).astype(np.int64)


def _some(batch: int, sequence: int, rng: np.random.Generator) -> np.ndarray:
    """Lengths that leave at least one token and, where there is room, at least one place of padding."""
    return rng.integers(1, max(2, sequence), size=batch)


def _none(batch: int, sequence: int, _: np.random.Generator) -> np.ndarray:
    return np.ones((batch, sequence), dtype=np.int64)


def _right(batch: int, sequence: int, rng: np.random.Generator) -> np.ndarray:
    return right_padded(_some(batch, sequence, rng), sequence)


def _left(batch: int, sequence: int, rng: np.random.Generator) -> np.ndarray:
    return np.ascontiguousarray(_right(batch, sequence, rng)[:, ::-1])


def _holes(batch: int, sequence: int, rng: np.random.Generator) -> np.ndarray:
    return rng.permuted(_right(batch, sequence, rng), axis=1)


def _masked_row(batch: int, sequence: int, rng: np.random.Generator) -> np.ndarray:
    mask = _right(batch, sequence, rng)
    mask[-1] = 0
    return mask


MASKS: Mapping[str, Callable[[int, int, np.random.Generator], np.ndarray]] = {
    "none": _none,
    "right": _right,
    "left": _left,
    "holes": _holes,
    "masked-row": _masked_row,
}
"""The five kinds of mask: no padding, padding on the right, on the left, in between, and a row without any real
token (the last; a batch of 1 has no other). Each takes (batch, sequence, generator) and returns a mask of
(batch, sequence), int64, 1 at real tokens."""


WITHOUT_MASK = "no mask"
"""The one case of :func:`masked_cases` of a model that takes no mask."""


def lognormal_lengths(
    count: int, median: float, sigma: float, least: int, most: int, rng: np.random.Generator
) -> np.ndarray:
    """Lengths of sentences as they are met: lognormal, truncated to ``least`` to ``most``, rounded to the nearest.

    Drawn by inverting the distribution function between the two ends, so that no value piles up at an end.

    Args:
        count: how many.
        median: of the distribution before truncation, in tokens.
        sigma: the standard deviation of the logarithm.
        least, most: the ends, both included.
        rng: the generator.
    """
    normal = NormalDist(math.log(median), sigma)
    low, high = normal.cdf(math.log(max(least - 0.5, 0.5))), normal.cdf(math.log(most + 0.5))
    # A truncation far out in a tail leaves no probability to draw from; its nearer end is the answer there.
    drawn = [
        normal.inv_cdf(position) if 0 < position < 1 else math.log(least if position <= 0 else most)
        for position in rng.uniform(low, high, size=count)
    ]
    return np.clip(np.rint(np.exp(drawn)), least, most).astype(np.int64)


def resolve_shape(
    spec: TensorSpec, batch: int, sequence: int | None, dims: Mapping[str, int] | None = None
) -> tuple[int, ...]:
    """An input's shape with every dimension a number.

    Args:
        spec: the input.
        batch: what a first dimension without a fixed size is.
        sequence: what a second dimension without a fixed size is.
        dims: symbolic dimensions by name; they come before ``batch`` and ``sequence``.

    Raises:
        InvalidFeeds: a dimension has no size.
    """
    if spec.shape is None:
        raise InvalidFeeds(f"Input {spec.name!r} is {spec.type} of unknown rank: feeds for it cannot be made up")
    sizes = []
    for axis, size in enumerate(spec.shape):
        given = (dims or {}).get(size) if isinstance(size, str) else size
        chosen = given if given is not None else batch if axis == 0 else sequence if axis == 1 else None
        if not isinstance(chosen, int):
            called = f"named {size!r}" if size else "without a name"
            raise InvalidFeeds(f"Input {spec.name!r} has a dimension {axis} {called}, and nothing says how large it is")
        sizes.append(chosen)
    return tuple(sizes)


def fixed_size(inputs: Sequence[TensorSpec], axis: int) -> int | None:
    """The size of a dimension that a model leaves no choice of."""
    sizes = [spec.shape[axis] for spec in inputs if spec.shape and len(spec.shape) > axis]
    return next((size for size in sizes if isinstance(size, int)), None)


def masked_cases(info: ModelInfo, batch: int, sequence: int | None, seed: int) -> dict[str, dict[str, np.ndarray]]:
    """Seeded feeds for each kind of mask, by its name; for one case, without a mask, where the model has none.

    A batch of 1 whose row has no real token has nothing to compare, and is left out.

    Raises:
        InvalidFeeds: as :func:`random_feeds` says.
    """
    random = np.random.default_rng(seed)
    if info.mask is None:
        flat = all(spec.shape is not None and len(spec.shape) < 2 for spec in info.required)
        return {WITHOUT_MASK: random_feeds(info, random, batch=batch, sequence=None if flat else sequence)}
    if sequence is None:
        raise InvalidFeeds(f"The model has the mask {info.mask!r}: its feeds need a sequence")
    masks = {name: make(batch, sequence, random) for name, make in MASKS.items()}
    return {
        name: random_feeds(info, random, batch=batch, sequence=sequence, mask=mask)
        for name, mask in masks.items()
        if mask.any()
    }


def random_feeds(
    info: ModelInfo,
    rng: np.random.Generator,
    *,
    batch: int,
    sequence: int | None = None,
    mask: np.ndarray | None = None,
    dims: Mapping[str, int] | None = None,
) -> dict[str, np.ndarray]:
    """Feeds for the inputs that a model requires.

    The input that ``info.mask`` names is the mask; ``token_type_ids`` is 0 up to a random place in each row and 1 after
    it; integers are uniform within their bounds (0 and 1 where the model states none); floating-point values are
    standard normal. Ids at padding are as random as the rest: a runtime that looks at them is found out.

    Args:
        info: the model.
        rng: the generator.
        batch, sequence, dims: see :func:`resolve_shape`.
        mask: (batch, sequence), 1 at real tokens; ``None`` for no padding.

    Raises:
        InvalidFeeds: an input is of a type or shape that cannot be made up, or has fixed dimensions that are not the
            requested ones; or there is a mask, and the model has no input for it.
    """
    if mask is not None and info.mask is None:
        raise InvalidFeeds("The model has no input known to be a mask, so its rows are always full")
    feeds = {}
    for spec in info.required:
        shape = _shape(spec, batch, sequence, dims)
        feeds[spec.name] = _mask(spec, shape, mask) if spec.name == info.mask else _random(spec, rng, shape)
    for axis, name, size in ((0, "batch", batch), (1, "sequence", sequence)):
        if size is not None and not any(feed.ndim > axis and feed.shape[axis] == size for feed in feeds.values()):
            shapes = ", ".join(f"{name} {list(feed.shape)}" for name, feed in feeds.items())
            raise InvalidFeeds(f"A {name} of {size} was requested; the model's inputs are fixed to others: {shapes}")
    return feeds


def _shape(spec: TensorSpec, batch: int, sequence: int | None, dims: Mapping[str, int] | None) -> tuple[int, ...]:
    if spec.dtype is None or not spec.type.startswith("tensor("):
        raise InvalidFeeds(f"Input {spec.name!r} is {spec.type}: feeds for it cannot be made up")
    return resolve_shape(spec, batch, sequence, dims)


def _mask(spec: TensorSpec, shape: tuple[int, ...], mask: np.ndarray | None) -> np.ndarray:
    full = np.ones(shape, dtype=np.int64) if mask is None else mask
    if full.shape != shape:
        raise InvalidFeeds(f"Input {spec.name!r} is {list(shape)}; a mask of {list(full.shape)} was requested")
    return full.astype(spec.dtype or np.int64)


def _random(spec: TensorSpec, rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    dtype = spec.dtype
    assert dtype is not None
    if spec.name == SEGMENT_INPUT and len(shape) == 2:
        second = np.arange(shape[1]) >= rng.integers(1, shape[1] + 1, size=(shape[0], 1))
        return np.minimum(second, 1 if spec.bounds is None else spec.bounds[1]).astype(dtype)
    if dtype.kind in "iu":
        least, most = spec.bounds or (0, 1)
        return rng.integers(max(0, least), most, size=shape, endpoint=True).astype(dtype)
    if dtype.kind == "b":
        return rng.integers(0, 1, size=shape, endpoint=True).astype(dtype)
    if dtype.kind == "c":
        return (rng.standard_normal(shape) + 1j * rng.standard_normal(shape)).astype(dtype)
    return rng.standard_normal(shape).astype(dtype)
