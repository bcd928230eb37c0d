"""Graphs that count indices outside their tables (:mod:`isorun.graph.transforms.index_checks`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from isorun.errors import InvalidFeeds
from isorun.types import INDEX_ERRORS, INDEX_NOTE, LoweredModel, TensorSpec


def counted(model: LoweredModel) -> tuple[str, ...]:
    """What a lowered model counts; empty if it does not count."""
    return tuple(model.notes.get(INDEX_NOTE, ()))


def with_counts(model: LoweredModel) -> LoweredModel:
    """A lowered model with the counts among its outputs, if it has any."""
    if not counted(model):
        return model
    counts = TensorSpec(INDEX_ERRORS, "tensor(int64)", (len(counted(model)),))
    return replace(model, info=replace(model.info, outputs=(*model.info.outputs, counts)))


def check_counts(what: Sequence[str], counts: np.ndarray) -> None:
    """Check the counts that a run returned.

    Args:
        what: what they count.
        counts: the number of indices outside each table.

    Raises:
        InvalidFeeds: an index was outside its table.
    """
    # argmax and item take less time than any
    if counts.item(counts.argmax()):
        raise InvalidFeeds(
            f"{what[int(np.argmax(counts != 0))]} is outside its table in {int(counts.max())} places for these feeds. "
            "Check that ids are those of this model, and that no row is longer than it accepts"
        )
