"""What int8 is calibrated on and what precisions are judged on: two sets of feeds that share nothing.

Both come from one list, the caller's samples or the texts that come with isorun, and every fourth entry is held out of
calibration. A precision that is judged on what it was calibrated on looks better than it is: MiniLM's int8 had a least
cosine to fp32 of 0.992 there, and of 0.952 on other texts.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from isorun.errors import InvalidFeeds
from isorun.models import source as models
from isorun.models.feeds import FeedChecker
from isorun.models.tokenizer import Tokenizer, TruncationWarning, feeds_of, places_of
from isorun.parity.samples import fixed_size, lognormal_lengths, masked_cases, random_feeds, right_padded
from isorun.system.cache import Cache, sha256
from isorun.types import Feeds, ModelInfo

Samples = Sequence[Feeds | str]
"""Feeds as :meth:`isorun.session.session.Session.run` takes them, or texts for the model's tokenizer."""

_TEXTS = Path(__file__).with_name("texts.json")
_EVERY = 4  # one sample of so many is held out
_ENOUGH = 24  # requests to judge on; fewer say too little (docs/precision.md) and are left to calibration
_ROWS = 8  # texts in a batch
_LONG, _UPPER = 20, 3  # sentences of prose in a long text; one sentence of so many is repeated in upper case
_RANDOM = (4, 32)  # batch and sequence of random feeds to judge on, where a model leaves the choice
_BATCHES, _MEDIAN, _SIGMA, _LONGEST = 16, 40, 0.6, 128  # random batches to calibrate on, and their lengths


def split(samples: Samples | None) -> tuple[list[Feeds | str] | None, list[Feeds | str]]:
    """Divide a caller's samples into those to calibrate on and those to judge on.

    Equal samples count once, so none is on both sides. Where fewer than 24 requests would be held out, all samples are
    for calibration.

    Returns:
        The samples to calibrate on, ``None`` for isorun's own; and those held out, empty for isorun's own.
    """
    if samples is None:
        return None, []
    unique = list({_content(sample): sample for sample in samples}.values())
    held_out = unique[_EVERY - 1 :: _EVERY]
    if sum(map(requests, held_out)) < _ENOUGH:
        return unique, []
    return [sample for index, sample in enumerate(unique) if index % _EVERY != _EVERY - 1], held_out


@cache
def texts(*, held_out: bool) -> dict[str, list[str]]:
    """The texts that come with isorun, by kind: those that are held out, or those to calibrate on."""
    kinds = {
        kind: [text for index, text in enumerate(listed) if (index % _EVERY == _EVERY - 1) == held_out]
        for kind, listed in json.loads(_TEXTS.read_text("utf-8")).items()
    }
    prose = kinds["prose"]
    kinds["upper case"] = [text.upper() for text in prose[::_UPPER]]
    kinds["long texts"] = [" ".join(prose[start : start + _LONG]) for start in range(0, len(prose), _LONG)]
    return kinds


def has_tokenizer(source: models.ModelSource) -> bool:
    """Whether a tokenizer lies beside a model."""
    return _tokenizer(source) is not None


def own_texts(source: models.ModelSource, info: ModelInfo) -> list[Feeds]:
    """isorun's texts to calibrate on, as feeds."""
    return _encoded_own(source, info, [text for listed in texts(held_out=False).values() for text in listed])


def random_batches(info: ModelInfo) -> list[Feeds]:
    """Seeded batches of random tokens to calibrate on, padded on the right.

    Raises:
        InvalidFeeds: an input is of a type or shape that cannot be made up.
    """
    rng = np.random.default_rng(0)
    batch, longest = sizes(info, _ROWS, _LONGEST)
    made: list[Feeds] = []
    for _ in range(_BATCHES):
        lengths = lognormal_lengths(batch, _MEDIAN, _SIGMA, 1, longest or 1, rng)
        sequence = fixed_size(info.required, 1) or int(lengths.max())
        mask = None if info.mask is None else right_padded(lengths, sequence)
        made.append(random_feeds(info, rng, batch=batch, sequence=longest and sequence, mask=mask))
    return made


def as_feeds(source: models.ModelSource, info: ModelInfo, samples: Samples) -> list[Feeds]:
    """A caller's samples as feeds, checked.

    Raises:
        InvalidFeeds: there are none, they are neither texts nor feeds, the model does not accept them, or none of them
            has a real token.
    """
    if not samples:
        raise InvalidFeeds("The samples for calibration are empty: give at least one, or None")
    strings = [sample for sample in samples if isinstance(sample, str)]
    feeds = [sample for sample in samples if isinstance(sample, Mapping)]
    if len(strings) + len(feeds) < len(samples) or (strings and feeds):
        kinds = " and ".join(sorted({type(sample).__name__ for sample in samples}))
        raise InvalidFeeds(f"The samples for calibration must all be texts or all be mappings of arrays, got {kinds}")
    checker = FeedChecker(info)
    checked = [checker.check(each) for each in (_encoded(source, info, strings) if strings else feeds)]
    if not any(_has_token(info, each) for each in checked):
        raise InvalidFeeds(f"The samples for calibration have no real token: {info.mask!r} is 0 throughout")
    return checked


def held_out(source: models.ModelSource, info: ModelInfo, samples: Samples) -> tuple[dict[str, list[Feeds]], str]:
    """What to judge a precision on, by kind, and where it comes from.

    Args:
        source, info: the model.
        samples: those of the caller's that are held out. If there are none, isorun's texts by the tokenizer beside the
            model; without a tokenizer, seeded random feeds under each kind of mask.

    Raises:
        InvalidFeeds: as of :func:`as_feeds`, or random feeds cannot be made up.
    """
    if samples:
        feeds = [each for each in as_feeds(source, info, samples) if _has_token(info, each)]
        return {"samples": feeds}, f"every {_EVERY}th of the given samples, held out of calibration"
    if has_tokenizer(source):
        kinds = {kind: _encoded_own(source, info, listed) for kind, listed in texts(held_out=True).items()}
        return {kind: feeds for kind, feeds in kinds.items() if feeds}, "isorun's texts, held out of calibration"
    cases = masked_cases(info, *sizes(info, *_RANDOM), seed=1)
    return {f"mask {name}": [feeds] for name, feeds in cases.items()}, "random tokens"


def requests(sample: Feeds | str) -> int:
    """How many requests a sample holds."""
    if not isinstance(sample, Mapping):
        return 1
    return max((np.shape(value)[0] for value in sample.values() if np.ndim(value)), default=1)


def digest(source: models.ModelSource, samples: Samples | None, cache: Cache) -> str:
    """A name for all that a model is calibrated and judged on."""
    parts = [repr(_content(sample)) for sample in samples or ()]
    if tokenizer := _tokenizer(source):
        parts += [sha256(_TEXTS.read_bytes()), cache.fingerprint(lambda: [tokenizer], tokenizer)]
    return sha256("|".join([str(samples is None), *parts]).encode())


def sizes(info: ModelInfo, batch: int, sequence: int) -> tuple[int, int | None]:
    """The batch and sequence to feed, where a model does not fix them; no sequence where it has none."""
    flat = all(spec.shape is not None and len(spec.shape) < 2 for spec in info.required)
    longest = min((size for size in info.limits.values() if size is not None), default=sequence)
    return fixed_size(info.required, 0) or batch, None if flat else fixed_size(info.required, 1) or min(
        sequence, longest
    )


def _tokenizer(source: models.ModelSource) -> Path | None:
    return next((place for place in places_of(source.path) if place.is_file()), None)


def _encoded(source: models.ModelSource, info: ModelInfo, listed: Sequence[str]) -> list[Feeds]:
    """Texts of similar length together, as feeds. A batch without a single token is left out: some tokenizers make none
    of an empty text."""
    limits = [limit for limit in info.limits.values() if limit is not None]
    tokenizer = Tokenizer.beside(source.path, min(limits, default=None))
    fixed = fixed_size(info.required, 1)
    ordered = sorted(listed, key=len)
    batches = (tokenizer.encode(ordered[start : start + _ROWS], fixed) for start in range(0, len(ordered), _ROWS))
    return [feeds_of(encoded, info) for encoded in batches if encoded["attention_mask"].any()]


def _encoded_own(source: models.ModelSource, info: ModelInfo, listed: Sequence[str]) -> list[Feeds]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TruncationWarning)  # the caller did not choose these texts
        return _encoded(source, info, listed)


def _has_token(info: ModelInfo, feeds: Feeds) -> bool:
    return info.mask is None or info.mask not in feeds or bool(np.any(feeds[info.mask]))


def _content(sample: Any) -> Any:
    """What makes two samples equal."""
    if not isinstance(sample, Mapping):
        return repr(sample)
    arrays = ((name, np.asarray(value)) for name, value in sorted(sample.items()))
    return tuple((name, array.dtype.str, array.shape, sha256(array.tobytes())) for name, array in arrays)
