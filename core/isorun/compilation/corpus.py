"""What int8 is calibrated on and what precisions are judged on: two disjoint sets of feeds.

Both come from one list, the caller's samples or the texts that come with isorun, and every fourth entry is held out of
calibration. A precision that is judged on its calibration samples looks better than it is: MiniLM's int8 had a minimum
cosine to fp32 of 0.992 there, and of 0.952 on other texts.
"""

from __future__ import annotations

import functools
import json
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from isorun.errors import InvalidFeeds
from isorun.models.feeds import FeedChecker
from isorun.models.lowering import ModelGraphs
from isorun.models.text_reader import TextReader, usable_settings
from isorun.models.tokenizer import TruncationWarning, feeds_of, places_of
from isorun.parity.samples import batch_size, fixed_size, lognormal_lengths, masked_cases, random_feeds, right_padded
from isorun.system.cache import sha256
from isorun.types import Feeds, ModelInfo

T = TypeVar("T")
Samples = Sequence[Feeds | str]
"""Feeds as for :meth:`isorun.session.session.Session.run`, or texts for the model's tokenizer."""

_TEXTS = Path(__file__).with_name("calibration_texts.json")
_EVERY = 4  # one sample in this many is held out
_ENOUGH = 24  # requests to judge on; fewer say too little (docs/precision-auto.md) and are left to calibration
_ROWS = 8  # texts in a batch
_LONG, _UPPER = 20, 3  # sentences of prose in a long text; one sentence in this many is repeated in upper case
_RANDOM = (4, 32)  # batch and sequence of random feeds to judge on, unless the model fixes them
_BATCHES, _MEDIAN, _SIGMA, _LONGEST = 16, 40, 0.6, 128  # random batches, and their lengths
_LENGTHS = 192  # in a sample of them


def split(samples: Samples | None) -> tuple[list[Feeds | str] | None, list[Feeds | str]]:
    """Divide a caller's samples into those to calibrate on and those to judge on.

    Equal samples count once, so that none is on both sides. If fewer than 24 requests would be held out, all samples
    are for calibration.

    Returns:
        The samples to calibrate on, ``None`` for isorun's own; and those held out, empty for isorun's own.
    """
    if samples is None:
        return None, []
    unique = list({content(sample): sample for sample in samples}.values())
    held_out = unique[_EVERY - 1 :: _EVERY]
    if sum(map(requests, held_out)) < _ENOUGH:
        return unique, []
    return [sample for index, sample in enumerate(unique) if index % _EVERY != _EVERY - 1], held_out


@functools.cache
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


def has_tokenizer(graphs: ModelGraphs) -> bool:
    """Whether there is a tokenizer beside the model."""
    return _tokenizer(graphs) is not None


def own_texts(graphs: ModelGraphs) -> list[Feeds]:
    """isorun's texts to calibrate on, as feeds."""
    return _encoded_own(graphs, [text for listed in texts(held_out=False).values() for text in listed])


def random_batches(info: ModelInfo, rows: int = _ROWS, count: int = _BATCHES) -> list[Feeds]:
    """Seeded batches of random tokens with the lengths of real texts, padded on the right.

    Args:
        rows: the texts of a batch, unless the model fixes them.

    Raises:
        InvalidFeeds: random values cannot be generated for the type or shape of an input.
    """
    rng = np.random.default_rng(0)
    batch, longest = sizes(info, rows, _LONGEST)
    lengths = (lognormal_lengths(batch or 1, _MEDIAN, _SIGMA, 1, longest or 1, rng) for _ in range(count))
    return [random_batch(info, length, rng) for length in lengths]


def random_lengths(info: ModelInfo) -> np.ndarray:
    """Lengths of real texts within the model's limits, in ascending order."""
    longest = sizes(info, 1, _LONGEST)[1]
    return np.sort(lognormal_lengths(_LENGTHS, _MEDIAN, _SIGMA, 1, longest or 1, np.random.default_rng(0)))


def random_batch(info: ModelInfo, lengths: np.ndarray, rng: np.random.Generator) -> Feeds:
    """A batch of random tokens, a row for each length, padded on the right.

    Raises:
        InvalidFeeds: as :func:`random_batches`.
    """
    sequence = fixed_size(info.required, 1) or int(lengths.max())
    mask = None if info.mask is None else right_padded(lengths, sequence)
    batch, has_sequence = sizes(info, len(lengths), _LONGEST)
    return random_feeds(info, rng, batch=batch, sequence=has_sequence and sequence, mask=mask)


def as_feeds(graphs: ModelGraphs, samples: Samples) -> list[Feeds]:
    """A caller's samples as feeds, validated.

    Raises:
        InvalidFeeds: the list is empty, its entries are neither texts nor feeds, the model does not accept them, or
            none of them has a real token.
    """
    if not samples:
        raise InvalidFeeds("calibration has no samples. Pass at least one, or None for isorun's texts")
    info = graphs.info
    strings = [sample for sample in samples if isinstance(sample, str)]
    feeds = [sample for sample in samples if isinstance(sample, Mapping)]
    if len(strings) + len(feeds) < len(samples) or (strings and feeds):
        kinds = " and ".join(sorted({type(sample).__name__ for sample in samples}))
        raise InvalidFeeds(f"The samples must all be texts or all be mappings of arrays, got {kinds}")
    checker = FeedChecker(info)
    checked = [checker.check(batch) for batch in (_encoded(graphs, strings) if strings else feeds)]
    if not any(_has_token(info, batch) for batch in checked):
        padding = info.padding_of(info.mask or "")
        raise InvalidFeeds(f"The samples have no real token: {info.mask!r} is {padding} throughout")
    return checked


def held_out(graphs: ModelGraphs, samples: Samples) -> tuple[dict[str, list[Feeds]], str]:
    """What to judge a precision on, by kind, and where it comes from.

    Args:
        samples: the caller's samples that are held out. If empty, isorun's texts by the tokenizer beside the model;
            without a tokenizer, seeded random feeds under each kind of mask.

    Raises:
        InvalidFeeds: as :func:`as_feeds`, or random feeds cannot be generated.
    """
    info = graphs.info
    if samples:
        feeds = [batch for batch in as_feeds(graphs, samples) if _has_token(info, batch)]
        return {"samples": feeds}, f"every {_EVERY}th of the given samples, held out of calibration"
    if has_tokenizer(graphs):
        kinds = {kind: _encoded_own(graphs, listed) for kind, listed in texts(held_out=True).items()}
        return {kind: feeds for kind, feeds in kinds.items() if feeds}, "isorun's texts, held out of calibration"
    cases = masked_cases(info, *sizes(info, *_RANDOM), seed=1)
    return {f"mask {name}": [feeds] for name, feeds in cases.items()}, "random tokens"


def requests(sample: Feeds | str) -> int:
    """How many requests a sample holds."""
    if not isinstance(sample, Mapping):
        return 1
    return max((np.shape(value)[0] for value in sample.values() if np.ndim(value)), default=1)


def digest(graphs: ModelGraphs, samples: Samples | None) -> str:
    """A name for everything that a model is calibrated and judged on."""
    parts = [repr(content(sample)) for sample in samples or ()]
    if tokenizer := _tokenizer(graphs):
        parts += [sha256(_TEXTS.read_bytes()), graphs.cache.fingerprint(lambda: [tokenizer], tokenizer)]
        parts.append(usable_settings(graphs.source.path, graphs.info).to_json())
    return sha256("|".join([str(samples is None), *parts]).encode())


def sizes(info: ModelInfo, batch: int, sequence: int) -> tuple[int | None, int | None]:
    """The batch and sequence to feed, unless the model fixes them; ``None`` for what it does not have."""
    flat = all(spec.shape is not None and len(spec.shape) < 2 for spec in info.required)
    longest = min((size for size in info.limits.values() if size is not None), default=sequence)
    return batch_size(info.required, batch), None if flat else fixed_size(info.required, 1) or min(sequence, longest)


def _tokenizer(graphs: ModelGraphs) -> Path | None:
    return next((path for path in places_of(graphs.source.path) if path.is_file()), None)


def workload(graphs: ModelGraphs, texts: Sequence[str] | None, rows: int, count: int) -> tuple[list[Feeds], str]:
    """What to time a model on, and what it is in words.

    Args:
        texts: the caller's, batched in their order; ``None`` for random tokens.
        rows: the texts of a batch.
        count: the maximum number of batches. Of more texts, some of every part are taken.

    Raises:
        InvalidFeeds: the list is empty, there is no tokenizer, or random feeds cannot be generated.
    """
    if texts is None:
        batches = random_batches(graphs.info, rows, count)
        return batches, f"random tokens, {_MEDIAN} at the median, in batches of {rows}"
    chosen = spread(texts, rows * count)
    if not chosen:
        raise InvalidFeeds("There are no texts. Pass at least one")
    batches = _encoded(graphs, chosen, rows, ordered=False)
    return batches, f"{len(chosen)} of the given texts in batches of {min(rows, len(chosen))}"


def spread(listed: Sequence[T], count: int) -> Sequence[T]:
    """At most so many entries of a list, at equal distances."""
    if len(listed) <= count:
        return listed
    return [listed[index * len(listed) // count] for index in range(count)]


def _encoded(graphs: ModelGraphs, listed: Sequence[str], rows: int = _ROWS, *, ordered: bool = True) -> list[Feeds]:
    """Texts as feeds, in order of length if they are to be ordered, so that those in one batch are similar. Batches
    without a token are dropped: some tokenizers return none for an empty text."""
    reader = TextReader(graphs.source.path, graphs.info)
    texts = sorted(listed, key=len) if ordered else listed
    batches = (reader.encode(texts[start : start + rows]) for start in range(0, len(texts), rows))
    return [feeds_of(encoded, graphs.info) for encoded in batches if encoded["attention_mask"].any()]


def _encoded_own(graphs: ModelGraphs, listed: Sequence[str]) -> list[Feeds]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TruncationWarning)  # the caller did not choose these texts
        return _encoded(graphs, listed)


def _has_token(info: ModelInfo, feeds: Feeds) -> bool:
    attended = info.attended(feeds)
    return attended is None or bool(np.any(attended))


def content(sample: Any) -> Any:
    """What makes two samples equal: a text, or the types, shapes and digests of feeds."""
    if not isinstance(sample, Mapping):
        return repr(sample)
    arrays = ((name, np.asarray(value)) for name, value in sorted(sample.items()))
    return tuple(
        (
            name,
            array.dtype.str,
            array.shape,
            sha256(repr(array.tolist()).encode() if array.dtype.hasobject else array.tobytes()),
        )
        for name, array in arrays
    )
