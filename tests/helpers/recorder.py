"""A model of two inputs that records its batches, to test :mod:`isorun.session.batching` without a runtime."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from isorun.errors import BackendFailed
from isorun.session import batching
from isorun.types import Feeds, ModelInfo, TensorSpec

INPUTS = tuple(TensorSpec(name, "tensor(int64)", ("batch", "sequence")) for name in ("ids", "mask"))
PADDABLE = ModelInfo(
    INPUTS,
    (TensorSpec("each", "tensor(int64)", ("batch", "sequence")),),
    17,
    mask="mask",
    token_outputs=("each",),
    keeps_padding="",
)
FIXED = replace(PADDABLE, keeps_padding="It reads its padding")


class Recorder:
    """A model whose output for each token is its id, and which remembers its batches."""

    def __init__(self) -> None:
        self.batches: list[tuple[int, int]] = []
        self.poison = -1

    def run(self, names: Sequence[str], feeds: Feeds) -> list[Any]:
        self.batches.append(feeds["ids"].shape)
        if self.poison in feeds["ids"]:
            raise BackendFailed("poisoned")
        return [feeds["ids"] * (feeds["mask"] != 0)]

    def map(self, requests: Any, info: ModelInfo = PADDABLE, **wishes: Any) -> batching.Results:
        """Requests through a batcher of their own, with whatever wishes."""
        wishes = {"max_tokens": 64, "max_wait": 0.05, "return_exceptions": False, **wishes}
        return batching.results(requests, self.run, batching.Layout(info, None), **wishes)


def small(length: int, value: int = 1) -> dict[str, np.ndarray]:
    """A request of one value, without padding."""
    return {"ids": np.full(length, value), "mask": np.ones(length, np.int64)}
