"""How accurate a precision's outputs are compared with fp32's, request by request.

A request is a row of a batch. An output's values for all its real tokens form one vector, with one cosine to fp32's.
Requests are held out of calibration (:mod:`isorun.compilation.corpus`) and grouped by kind.
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
"""How many times the error of the worst held-out request an unseen one may have (docs/precision.md)."""

_TIMED = (1, 128)  # batch and sequence, unless the model fixes them

Run = Callable[[Feeds], Sequence[Any]]
"""Runs a model on feeds and returns its outputs in the model's order."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """A precision compared with fp32.

    Attributes:
        cosines: the minimum cosine of any request, by kind; ``None`` for a kind without comparable numbers.
        reason: why it is not accurate enough; empty if it is.
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
    """The minimum cosine of held-out requests for unseen ones to be within a tolerance."""
    return 1 - (1 - tolerance) / MARGIN


def limits(cosine: float) -> Tolerance:
    """The limits on a request's outputs for a minimum cosine.

    A cosine does not depend on size, so the root mean square of the error is limited too: to 1.5 times the distance
    between vectors of equal length at that angle.
    """
    return Tolerance(max_rel=None, rms=min(0.99, 1.5 * float(np.sqrt(2 * (1 - cosine))) + 1e-6), cosine=cosine)


def judge(
    info: ModelInfo,
    run: Run,
    kinds: Mapping[str, Sequence[Feeds]],
    expected: Mapping[str, Sequence[Sequence[Any]]],
    within: Tolerance,
) -> Judgement:
    """Run a model on held-out requests and compare the outputs with fp32's.

    Args:
        info: the model.
        run: runs it in the precision to judge.
        kinds: the requests, by kind.
        expected: the outputs in fp32, in the same order.
        within: the limits.
    """
    cosines: dict[str, float | None] = {}
    reasons: dict[str, str] = {}
    for kind, batches in kinds.items():
        measured = []
        for feeds, right in zip(batches, expected[kind], strict=True):
            try:
                parity = differ(info, run(feeds), right, feeds, within)
            except BackendFailed as error:
                return Judgement(cosines, str(error))
            measured.append(parity.as_dict()["cosine"])
            if parity.reasons:
                stated = next((reason for reason in parity.reasons if ": cosine is" in reason), parity.reasons[0])
                reasons.setdefault(kind, f"{kind}: {stated}")
        cosines[kind] = min((cosine for cosine in measured if cosine is not None), default=None)
    judged = Judgement(cosines, "")
    worst, _ = judged.worst
    return replace(judged, reason=reasons.get(worst or "", next(iter(reasons.values()), "")))


def timed(info: ModelInfo) -> tuple[Feeds, str]:
    """Feeds for timing, and their shape."""
    batch, sequence = corpus.sizes(info, *_TIMED)
    feeds = random_feeds(info, np.random.default_rng(0), batch=batch, sequence=sequence)
    return feeds, f"{batch} x {sequence}" if sequence else str(batch)


def differ(info: ModelInfo, results: Sequence[Any], expected: Sequence[Any], feeds: Feeds, within: Tolerance) -> Parity:
    """Compare a model's outputs with those in fp32, in the model's order."""
    return compare(_by_request(info, results, feeds), _by_request(info, expected, feeds), None, within)


def _by_request(info: ModelInfo, results: Sequence[Any], feeds: Feeds) -> dict[str, Any]:
    """Each output as one row per request that has a real token, with the values of all its real tokens."""
    mask = feeds.get(info.mask) if info.mask else None
    rows: dict[str, Any] = {}
    for spec, result in zip(info.outputs, results, strict=True):
        if isinstance(result, np.ndarray) and result.size and result.ndim and result.dtype.kind in "fV":
            if mask is not None and result.shape[0] == mask.shape[0]:
                if spec.name in (info.token_outputs or ()):
                    result = result * (mask != 0).reshape(mask.shape + (1,) * (result.ndim - 2))
                result = result[(mask != 0).any(axis=1)]
            result = result.reshape(len(result), -1)
        rows[spec.name] = result
    return rows
