"""How accurate a precision's outputs are beside those of fp32, request by request.

A request is a row of a batch. What it gives is all of an output's values for its real tokens, side by side: one vector,
and one cosine to fp32's. Requests are held out of calibration (:mod:`isorun.compilation.corpus`) and grouped by kind.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from isorun.compilation import corpus
from isorun.errors import BackendFailed
from isorun.parity import Parity, Tolerance, compare
from isorun.parity.samples import random_feeds
from isorun.types import Feeds, ModelInfo

MARGIN = 2
"""How many times as far off as the worst held-out request an unseen one is allowed for (docs/precision.md)."""

_TIMED = (1, 128)  # batch and sequence, where a model leaves the choice

Run = Callable[[Feeds], Sequence[Any]]
"""Runs a model on feeds; its outputs in the model's order."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """A precision beside fp32.

    Attributes:
        cosines: the least cosine of any request, by kind; ``None`` for a kind without a number to compare.
        reason: why it is not accurate enough; empty where it is.
    """

    cosines: Mapping[str, float | None]
    reason: str

    @property
    def worst(self) -> tuple[str | None, float | None]:
        """The kind of the least accurate request, and its cosine."""
        measured = {kind: cosine for kind, cosine in self.cosines.items() if cosine is not None}
        kind = min(measured, key=lambda name: measured[name], default=None)
        return kind, None if kind is None else measured[kind]


def required_cosine(tolerance: float) -> float:
    """The least cosine that a held-out request must have, so that unseen ones are within a tolerance."""
    return 1 - (1 - tolerance) / MARGIN


def limits(cosine: float) -> Tolerance:
    """What keeps a request's outputs within a cosine.

    A cosine says nothing of size: the root mean square of the error may be 1.5 times what that angle makes between
    vectors of one length.
    """
    return Tolerance(max_rel=None, rms=min(0.99, 1.5 * float(np.sqrt(2 * (1 - cosine))) + 1e-6), cosine=cosine)


def judge(
    info: ModelInfo,
    run: Run,
    kinds: Mapping[str, Sequence[Feeds]],
    expected: Mapping[str, Sequence[Sequence[Any]]],
    within: Tolerance,
) -> Judgement:
    """Run a model on held-out requests and compare with what fp32 gave.

    Args:
        info: the model.
        run: runs it in the precision to judge.
        kinds: the requests, by kind.
        expected: the outputs in fp32, in the same order.
        within: what is accurate enough.
    """
    cosines: dict[str, float | None] = {}
    reasons: dict[str, str] = {}
    for kind, batches in kinds.items():
        least = []
        for feeds, right in zip(batches, expected[kind], strict=True):
            try:
                parity = differ(info, run(feeds), right, feeds, within)
            except BackendFailed as error:
                return Judgement(cosines, str(error))
            least.append(parity.as_dict()["cosine"])
            if parity.reasons:
                stated = next((reason for reason in parity.reasons if ": cosine is" in reason), parity.reasons[0])
                reasons.setdefault(kind, f"{kind}: {stated}")
        cosines[kind] = min((cosine for cosine in least if cosine is not None), default=None)
    judged = Judgement(cosines, "")
    worst, _ = judged.worst
    return replace(judged, reason=reasons.get(worst or "", next(iter(reasons.values()), "")))


def timed(info: ModelInfo) -> tuple[Feeds, str]:
    """Feeds to time with, and their shape."""
    batch, sequence = corpus.sizes(info, *_TIMED)
    feeds = random_feeds(info, np.random.default_rng(0), batch=batch, sequence=sequence)
    return feeds, f"{batch} x {sequence}" if sequence else str(batch)


def differ(info: ModelInfo, results: Sequence[Any], expected: Sequence[Any], feeds: Feeds, within: Tolerance) -> Parity:
    """Compare a model's outputs with those in fp32, in the model's order."""
    return compare(_by_request(info, results, feeds), _by_request(info, expected, feeds), None, within)


def _by_request(info: ModelInfo, results: Sequence[Any], feeds: Feeds) -> dict[str, Any]:
    """Each output with a row for each request that has a token: all that it gives for the real ones, side by side."""
    mask = feeds.get(info.mask) if info.mask else None
    made: dict[str, Any] = {}
    for spec, result in zip(info.outputs, results, strict=True):
        if isinstance(result, np.ndarray) and result.size and result.ndim and result.dtype.kind in "fV":
            if mask is not None and result.shape[0] == mask.shape[0]:
                if spec.name in (info.token_outputs or ()):
                    result = result * (mask != 0).reshape(mask.shape + (1,) * (result.ndim - 2))
                result = result[(mask != 0).any(axis=1)]
            result = result.reshape(len(result), -1)
        made[spec.name] = result
    return made
