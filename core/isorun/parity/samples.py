"""Seeded random feeds for a model, with padding by a mask.

The functions take a random generator: feeds depend only on its seed, not on the machine.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from statistics import NormalDist

import numpy as np

from isorun.errors import InvalidFeeds, did_you_mean
from isorun.types import ModelInfo, TensorSpec

SEGMENT_INPUT = "token_type_ids"
_CHOICES, _RANK_OF_CHOICES = 2, 3
_STRINGS, _MAX_STRING = "tensor(string)", 99


def right_padded(lengths: Sequence[int] | np.ndarray, sequence: int) -> np.ndarray:
    """A mask for padding on the right: (batch, sequence), int64, 1 at real tokens."""
    return (np.arange(sequence) < np.asarray(lengths)[:, None]).astype(np.int64)


def _lengths(batch: int, sequence: int, rng: np.random.Generator) -> np.ndarray:
    """Random lengths of at least one token and, if there is room, at least one position of padding."""
    return rng.integers(1, max(2, sequence), size=batch)


def _none(batch: int, sequence: int, _: np.random.Generator) -> np.ndarray:
    return np.ones((batch, sequence), dtype=np.int64)


def _right(batch: int, sequence: int, rng: np.random.Generator) -> np.ndarray:
    return right_padded(_lengths(batch, sequence, rng), sequence)


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
"""The five kinds of mask: no padding, padding on the right, on the left, in between, and a fully masked last row. Each
function takes (batch, sequence, generator) and returns a mask (batch, sequence), int64, 1 at real tokens."""


WITHOUT_MASK = "no mask"
"""The only case of :func:`masked_cases` for a model without a mask."""


def lognormal_lengths(
    count: int, median: float, sigma: float, minimum: int, maximum: int, rng: np.random.Generator
) -> np.ndarray:
    """Realistic sentence lengths: lognormal, truncated to ``minimum`` to ``maximum``, rounded to the nearest.

    Drawn by inverting the distribution function between the two ends, so that no value piles up at an end.

    Args:
        count: how many.
        median: of the distribution before truncation, in tokens.
        sigma: the standard deviation of the logarithm.
        minimum, maximum: the range, inclusive.
        rng: the generator.
    """
    normal = NormalDist(math.log(median), sigma)
    low, high = normal.cdf(math.log(max(minimum - 0.5, 0.5))), normal.cdf(math.log(maximum + 0.5))
    # In a far tail the probabilities are 0 or 1; use the closer end of the range.
    drawn = [
        normal.inv_cdf(position) if 0 < position < 1 else math.log(minimum if position <= 0 else maximum)
        for position in rng.uniform(low, high, size=count)
    ]
    return np.clip(np.rint(np.exp(drawn)), minimum, maximum).astype(np.int64)


def resolve_shape(
    spec: TensorSpec, batch: int | None, sequence: int | None, dims: Mapping[str, int]
) -> tuple[int, ...]:
    """Replace the symbolic dimensions of an input's shape.

    Args:
        spec: the input.
        batch: the size of a symbolic first dimension; ``None`` if there is none.
        sequence: the size of a symbolic second dimension, and of others with its name.
        dims: sizes of symbolic dimensions by name, which take precedence.

    Raises:
        InvalidFeeds: its type is not supported, or a dimension has no size.
    """
    if (spec.dtype is None and spec.type != _STRINGS) or not spec.type.startswith("tensor("):
        raise InvalidFeeds(f"Cannot generate feeds for input {spec.name!r}: {spec.type} is not supported")
    if spec.shape is None:
        raise InvalidFeeds(f"Cannot generate feeds for input {spec.name!r}: {spec.type} of unknown rank")
    sizes = []
    for axis, size in enumerate(spec.shape):
        fixed = dims.get(size) if isinstance(size, str) else size
        is_length = axis == 1 or (axis > 1 and isinstance(size, str) and size == spec.shape[1])  # a mask of pairs
        chosen = fixed if fixed is not None else batch if axis == 0 else sequence if is_length else None
        if not isinstance(chosen, int):
            label = repr(size) if size else "unnamed"
            raise InvalidFeeds(f"Input {spec.name!r}: dimension {axis} ({label}) has no size")
        sizes.append(chosen)
    return tuple(sizes)


def fixed_size(inputs: Sequence[TensorSpec], axis: int) -> int | None:
    """The fixed size of a dimension; ``None`` if it is symbolic."""
    sizes = [spec.shape[axis] for spec in inputs if spec.shape and len(spec.shape) > axis]
    return next((size for size in sizes if isinstance(size, int)), None)


def batch_size(inputs: Sequence[TensorSpec], batch: int) -> int | None:
    """The number of rows of inputs: a fixed one, otherwise ``batch``; ``None`` if all of them are scalars."""
    if inputs and all(spec.shape == () for spec in inputs):
        return None
    fixed = fixed_size(inputs, 0)
    return batch if fixed is None else fixed


def masked_cases(
    info: ModelInfo, batch: int | None, sequence: int | None, seed: int
) -> dict[str, dict[str, np.ndarray]]:
    """Seeded feeds by kind of mask; a single case for a model without a mask.

    A batch of one fully masked row is omitted, since it has nothing to compare.

    Raises:
        InvalidFeeds: as :func:`random_feeds` says.
    """
    random = np.random.default_rng(seed)
    if info.mask is None:
        flat = all(spec.shape is not None and len(spec.shape) < 2 for spec in info.required)
        return {WITHOUT_MASK: random_feeds(info, random, batch=batch, sequence=None if flat else sequence)}
    if sequence is None or batch is None:
        raise InvalidFeeds(f"The model has the mask {info.mask!r}, so its feeds need a sequence length")
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
    batch: int | None,
    sequence: int | None = None,
    mask: np.ndarray | None = None,
    dims: Mapping[str, int] | None = None,
) -> dict[str, np.ndarray]:
    """Generate feeds for the required inputs of a model.

    The input that ``info.mask`` names is the mask; ``token_type_ids`` is 0 up to a random place in each row and 1 after
    it; integers are uniform within their bounds (0 and 1 without a maximum); floating-point values are standard normal;
    strings are numbers, which a model may convert.
    Ids at padding are random too, which detects runtimes that read them.

    Args:
        info: the model.
        rng: the generator.
        batch, sequence, dims: see :func:`resolve_shape`.
        mask: (batch, sequence), 1 at real tokens; ``None`` for no padding. A choice has the mask of its row, the
            next one that of the row before it.

    Raises:
        InvalidFeeds: the type or shape of an input is not supported, its fixed dimensions differ from the requested
            ones, no input has one of ``dims``, or there is a mask and the model has no mask input.
    """
    if mask is not None and info.mask is None:
        raise InvalidFeeds("The model has no known mask input, so padding cannot be requested")
    feeds = {}
    symbols = {size: None for spec in info.required for size in spec.shape or () if isinstance(size, str)}
    if unknown := next((name for name in dims or {} if name not in symbols), None):
        raise InvalidFeeds(f"No required input has a dimension {unknown!r}{did_you_mean(unknown, symbols)}")
    dims = {**_choices(info, sequence), **(dims or {})}
    for spec in info.required:
        shape = resolve_shape(spec, batch, sequence, dims)
        is_mask = spec.name == info.mask
        feeds[spec.name] = _mask(info, spec, shape, mask) if is_mask else _random(spec, rng, shape)
    for axes, name, size in ((slice(1), "batch", batch), (slice(1, None), "sequence", sequence)):
        if size is not None and feeds and not any(size in feed.shape[axes] for feed in feeds.values()):
            shapes = ", ".join(f"{name} {list(feed.shape)}" for name, feed in feeds.items())
            raise InvalidFeeds(f"{name} {size} was requested, but the model's inputs have fixed shapes: {shapes}")
    return feeds


def _choices(info: ModelInfo, sequence: int | None) -> dict[str, int]:
    """The sizes of symbolic dimensions of multiple choice, whose mask is (batch, choices, sequence)."""
    shapes = {spec.name: spec.shape for spec in info.required}
    if len(shapes.get(info.mask or "") or ()) != _RANK_OF_CHOICES:
        return {}
    of_choices = [shape for shape in shapes.values() if shape is not None and len(shape) == _RANK_OF_CHOICES]
    sizes = [pair for _, *named in of_choices for pair in zip(named, (_CHOICES, sequence), strict=True)]
    return {name: size for name, size in sizes if isinstance(name, str) and size is not None}


def _mask(info: ModelInfo, spec: TensorSpec, shape: tuple[int, ...], mask: np.ndarray | None) -> np.ndarray:
    full = np.ones(shape, dtype=np.int64) if mask is None else mask
    if full.ndim < len(shape) == _RANK_OF_CHOICES:
        full = np.stack([np.roll(full, choice, axis=0) for choice in range(shape[1])], axis=1)
    if full.shape != shape:
        raise InvalidFeeds(f"Input {spec.name!r} has shape {list(shape)}, but the mask has {list(full.shape)}")
    return info.as_mask(full).astype(spec.dtype or np.int64)


def _random(spec: TensorSpec, rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    dtype = spec.dtype
    if dtype is None:
        return rng.integers(0, _MAX_STRING, size=shape, endpoint=True).astype(str).astype(object)
    if spec.name == SEGMENT_INPUT and len(shape) == 2:
        second = np.arange(shape[1]) >= rng.integers(1, shape[1] + 1, size=(shape[0], 1))
        return np.minimum(second, 1 if spec.bounds is None else spec.bounds[1]).astype(dtype)
    if dtype.kind in "iu":
        minimum, maximum = spec.bounds or (0, 1)
        if maximum == np.iinfo(dtype).max:  # no maximum, as of a value that the model clips
            maximum = max(1, minimum)
        first = max(0, minimum) if maximum >= 0 else minimum
        return rng.integers(first, maximum, size=shape, endpoint=True).astype(dtype)
    if dtype.kind == "b":
        return rng.integers(0, 1, size=shape, endpoint=True).astype(dtype)
    if dtype.kind == "c":
        return (rng.standard_normal(shape) + 1j * rng.standard_normal(shape)).astype(dtype)
    return rng.standard_normal(shape).astype(dtype)
