"""Seeded feeds, by the name that plugins and their tests have for them: see :mod:`isorun.parity.samples`."""

from __future__ import annotations

from isorun.parity.samples import (
    MASKS,
    SEGMENT_INPUT,
    lognormal_lengths,
    random_feeds,
    resolve_shape,
    right_padded,
)

__all__ = [
    "MASKS",
    "SEGMENT_INPUT",
    "lognormal_lengths",
    "random_feeds",
    "resolve_shape",
    "right_padded",
]
