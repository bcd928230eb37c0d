"""Feeds to run before the first request."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from numbers import Integral
from typing import Any, NamedTuple

import numpy as np

from isorun.compilation import corpus
from isorun.errors import InvalidFeeds
from isorun.models.feeds import FeedChecker
from isorun.models.lowering import ModelGraphs
from isorun.parity.samples import MASKS, random_feeds, right_padded
from isorun.system.arguments import check_items, is_number
from isorun.types import Feeds, ModelInfo, StaticShapes

_SHAPES = ((1, 16), (1, 64), (8, 32), (8, 128))  # batch, sequence
_MAX_LENGTHS = 128
_MAX_TOKENS = 1 << 30
_KINDS = ("left", "masked-row")  # of masks, besides none and padding on the right


class WarmupFeeds(NamedTuple):
    """Feeds to warm up with.

    Attributes:
        runs: what requests look like.
        between: single requests of the lengths between those of ``runs``, which every model sees once.
        others: for shapes on another device than the CPU, where the kernels depend on where padding is (docs/gpu.md),
            feeds with padding on the left, and with a row without a token. A backend may reject these.
    """

    runs: list[Feeds]
    between: list[Feeds]
    others: list[Feeds]


def feeds(
    graphs: ModelGraphs,
    checker: FeedChecker,
    on: Iterable[tuple[int, int] | str | Feeds] | None,
    device: str,
    static: StaticShapes | None = None,
) -> WarmupFeeds:
    """Feeds to warm up with, validated: with padding and without, so that every graph of the model is compiled.

    Args:
        on: shapes (batch, sequence), texts or feeds; ``None`` for a range of shapes.
        static: what the backend declares if it compiles one shape at a time.

    Raises:
        InvalidFeeds: the model does not accept them, or random feeds cannot be generated for it.
    """
    info, rng = graphs.info, np.random.default_rng(0)
    fitted = dict.fromkeys(corpus.sizes(info, *shape) for shape in _SHAPES)  # within the model's limits
    if on is not None:
        check_items(on, "on", "shapes, texts or feeds")
    requested = [] if on is None else list(on)
    asked = [_checked(shape, info) for shape in requested if isinstance(shape, tuple)]
    samples: list[Any] = [sample for sample in requested if not isinstance(sample, tuple)]
    runs: list[Feeds] = list(corpus.as_feeds(graphs, samples)) if samples else []
    others: list[Feeds] = []
    shapes: Iterable[tuple[int | None, int | None]] = fitted if on is None else asked
    try:
        for batch, sequence in shapes:
            rows, length = batch or 1, sequence or 1  # without them, there is no mask
            for lengths in (np.full(rows, length), np.full(rows, max(1, length // 3))):
                lengths[0] = length
                mask = None if info.mask is None else right_padded(lengths, length)
                runs.append(checker.check(random_feeds(info, rng, batch=batch, sequence=sequence, mask=mask)))
            for kind in _KINDS if device != "cpu" and info.mask is not None else ():
                mask = MASKS[kind](rows, length, rng)
                others.append(checker.check(random_feeds(info, rng, batch=batch, sequence=sequence, mask=mask)))
    except InvalidFeeds as error:
        raise InvalidFeeds(f"{error}. To warm up with feeds of your own, pass them: warmup([feeds])") from error
    between_lengths = _lengths_between(info.mask, runs, static)
    between = [checker.check(random_feeds(info, rng, batch=1, sequence=length)) for length in between_lengths]
    return WarmupFeeds(runs, between, others)


def _checked(shape: tuple[Any, ...], info: ModelInfo) -> tuple[int, int]:
    """A caller's shape, which a row may not be too long for, nor feeds too large for any machine."""
    if len(shape) != 2 or not all(is_number(size, Integral) and size >= 1 for size in shape):
        raise InvalidFeeds(f"A shape to warm up with must be (batch, sequence) of at least 1 each, got {shape}")
    batch, sequence = map(int, shape)
    longest = min((size for size in info.limits.values() if size is not None), default=None)
    if longest is not None and sequence > longest:
        raise InvalidFeeds(
            f"A shape to warm up with may have at most {longest} tokens in a row, got {(batch, sequence)}"
        )
    if batch * sequence > _MAX_TOKENS:
        raise InvalidFeeds(f"A shape to warm up with may have at most {_MAX_TOKENS:,} tokens, got {(batch, sequence)}")
    return batch, sequence


def _lengths_between(mask: str | None, runs: Sequence[Feeds], static: StaticShapes | None) -> list[int]:
    """The lengths between those of single requests, at most 128 of them: runtimes prepare for each length. Of a backend
    that compiles one shape at a time, only those that it declares.

    The first run of a length takes 1.6 times as long as later ones on OpenVINO (2026.4.1, MiniLM).
    """
    shapes = [] if mask is None else [np.shape(feeds[mask]) for feeds in runs if mask in feeds]
    lengths = {shape[1] for shape in shapes if len(shape) == 2 and shape[0] == 1}
    if not lengths:
        return []
    every: Sequence[int] = range(min(lengths), max(lengths) + 1)
    if static is not None:
        every = [length for length in static.lengths if length in every]
    return [length for length in every[:: max(1, -(-len(every) // _MAX_LENGTHS))] if length not in lengths]
