"""How near a precision's answers are to those of fp32, request by request.

A request is a row of a batch. What it gives is all of an output's values for its real tokens, side by side: one vector,
and one cosine to fp32's. Requests are what int8 is calibrated on, text where there is any: on random tokens a trained
model's int8 looks far worse than it is (a token of MiniLM's had a cosine of 0.78 there, of 0.98 on text).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from isorun.compilation import calibration
from isorun.errors import InvalidFeeds
from isorun.models import source as models
from isorun.models.feeds import FeedChecker
from isorun.parity import Parity, Tolerance, compare, token_level_outputs
from isorun.parity.samples import MASK_INPUT, fixed_size, masked_cases, random_feeds
from isorun.system.cache import Cache, sha256
from isorun.types import Feeds, ModelInfo, TensorSpec

Samples = calibration.Samples | None

_BATCHES = 3  # of samples, to compare on
_RANDOM, _TIMED = (4, 32), (1, 128)  # batch and sequence, where a model leaves the choice


def limits(tolerance: float) -> Tolerance:
    """What keeps a request's outputs within a cosine.

    A cosine says nothing of size: the root mean square of the error may be 1.5 times what that angle makes between
    vectors of one length.
    """
    return Tolerance(max_rel=None, rms=min(0.99, 1.5 * float(np.sqrt(2 * (1 - tolerance))) + 1e-6), cosine=tolerance)


def digest(source: models.ModelSource, samples: Samples) -> str:
    """A name for what is compared on."""
    if samples is None:
        return "isorun's sentences" if calibration.has_text(source) else "random"
    contents = []
    for each in samples:
        arrays = sorted(each.items()) if isinstance(each, Mapping) else [("text", each)]
        contents += [
            f"{name} {np.asarray(value).dtype}".encode() + np.asarray(value).tobytes() for name, value in arrays
        ]
    return sha256(b"|".join(contents))


def requests(source: models.ModelSource, info: ModelInfo, samples: Samples, cache: Cache) -> tuple[list[Feeds], str]:
    """Feeds to compare on, and a word for them.

    Args:
        source, info: the model.
        samples: feeds or texts; ``None`` for the sentences that come with isorun, by the tokenizer beside the model;
            where it has none, for seeded random feeds under five kinds of mask.
        cache: as for a session.

    Raises:
        InvalidFeeds: the model does not take the samples, none of them has a real token, or feeds cannot be made up.
    """
    if samples is not None or calibration.has_text(source):
        feeds, origin = calibration.sample_feeds(source, info, samples, cache)
        if not feeds:
            raise InvalidFeeds("The samples to compare on are empty: give at least one, or None")
        checker = FeedChecker(info, indices=True)
        checked = [checker.check(each) for each in feeds]
        real = [each for each in checked if MASK_INPUT not in each or np.any(each[MASK_INPUT])]
        if not real:
            raise InvalidFeeds(f"The samples to compare on have no real token: {MASK_INPUT!r} is 0 throughout")
        return real[:: max(1, len(real) // _BATCHES)], origin
    return list(masked_cases(_inputs(info), *_sizes(info, *_RANDOM), seed=0).values()), "random tokens"


def timed(info: ModelInfo) -> tuple[Feeds, str]:
    """Feeds to time with, and their shape."""
    batch, sequence = _sizes(info, *_TIMED)
    feeds = random_feeds(_inputs(info), np.random.default_rng(0), batch=batch, sequence=sequence)
    return feeds, f"{batch} x {sequence}" if sequence else str(batch)


def differ(info: ModelInfo, results: Sequence[Any], expected: Sequence[Any], feeds: Feeds, within: Tolerance) -> Parity:
    """Compare a model's outputs with those in fp32, in the model's order."""
    return compare(_by_request(info, results, feeds), _by_request(info, expected, feeds), None, within)


def _by_request(info: ModelInfo, results: Sequence[Any], feeds: Feeds) -> dict[str, Any]:
    """Each output with a row for each request that has a token: all that it gives for the real ones, side by side."""
    mask = feeds.get(MASK_INPUT)
    by_token = token_level_outputs(info.inputs, info.outputs) or ()
    made: dict[str, Any] = {}
    for spec, result in zip(info.outputs, results, strict=True):
        if isinstance(result, np.ndarray) and result.size and result.ndim and result.dtype.kind in "fV":
            if mask is not None and result.shape[0] == mask.shape[0]:
                if spec.name in by_token:
                    result = result * (mask != 0).reshape(mask.shape + (1,) * (result.ndim - 2))
                result = result[(mask != 0).any(axis=1)]
            result = result.reshape(len(result), -1)
        made[spec.name] = result
    return made


def _inputs(info: ModelInfo) -> list[TensorSpec]:
    return [spec for spec in info.inputs if not spec.overridable]


def _sizes(info: ModelInfo, batch: int, sequence: int) -> tuple[int, int | None]:
    """The batch and sequence to feed, where a model does not fix them; no sequence where it has none."""
    inputs = _inputs(info)
    flat = all(spec.shape is not None and len(spec.shape) < 2 for spec in inputs)
    most = min((size for size in info.limits.values() if size is not None), default=sequence)
    return fixed_size(inputs, 0) or batch, None if flat else fixed_size(inputs, 1) or min(sequence, most)
