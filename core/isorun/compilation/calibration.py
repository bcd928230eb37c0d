"""Calibration: what a model's dense layers are given in use, seen once, so that they can be quantized.

The model runs in fp32 on the backend that it is quantized for, its padding removed where it can be, so that only real
tokens count. What comes of it is kept by the model, the feeds and the recipe, and is the same for every backend.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from isorun.errors import InvalidFeeds, InvalidModel, UnsupportedModel
from isorun.graph import code_digest
from isorun.models import source as models
from isorun.models.feeds import FeedChecker
from isorun.models.tokenizer import Tokenizer, TruncationWarning, places_of
from isorun.plugin.backend import Backend
from isorun.system.cache import Cache, sha256
from isorun.system.hardware import cpu_flags
from isorun.types import CompileConfig, Feeds, LoweredModel, ModelInfo

Samples = Sequence[Feeds | str]
"""Feeds as :meth:`isorun.session.session.Session.run` takes them, or texts for the model's tokenizer."""

_SENTENCES = Path(__file__).parents[1] / "graph" / "transforms" / "precision" / "sentences.txt"
_ROWS, _BATCHES, _MEDIAN, _LONGEST = 8, 16, 40, 128  # of texts in a batch; of random batches and their lengths
_FEW = 256  # real tokens: MiniLM's least cosine on text was 0.99 with 362 of them, 0.96 with 98, 0.88 with 39
_VNNI = ("avx512_vnni", "avx_vnni", "amx_int8")


class CalibrationWarning(UserWarning):
    """A model is quantized without having seen what it is used for, or too little of it."""


def calibrate(
    backend: Backend, source: models.ModelSource, config: CompileConfig, samples: Samples | None, cache: Cache
) -> models.Quantized:
    """The table of a model's quantized layers.

    Args:
        backend: runs the model in fp32.
        source: the model.
        config: the device and threads to run it with.
        samples: what to feed it. ``None`` for the sentences that come with isorun, by the tokenizer beside the model;
            where it has none, for seeded random feeds, with a :class:`CalibrationWarning`. So it is of samples with
            fewer than 256 real tokens.
        cache: where the table is kept.

    Raises:
        UnsupportedModel: the model has no dense layers in the fused form that can be quantized.
        InvalidFeeds: there are no samples, or none with a real token, or the model does not take them.
    """
    info, _ = models.inspect(source, cache)
    if not info.fused:
        raise UnsupportedModel("The model is no encoder that isorun knows, so there is nothing to quantize")
    feeds, origin = sample_feeds(source, info, samples, cache)
    if not feeds:
        raise InvalidFeeds("The samples for calibration are empty: give at least one, or None")
    checker = FeedChecker(info, indices=True)
    checked = [checker.check(each) for each in feeds]
    _check_enough(models.padding(source, cache).mask, checked)
    reduce_range = not cpu_flags().intersection(_VNNI)
    digest = sha256(b"".join(name.encode() + np.asarray(each[name]).tobytes() for each in checked for name in each))
    key = sha256(f"{code_digest()}|{source.fingerprint}|{digest}|{reduce_range}".encode())[:40]

    def make(folder: Path) -> dict[str, Any]:
        return {"layers": _quantize(backend, source, config, checked, folder, reduce_range=reduce_range)}

    entry = cache.get_or_make("calibrated", key, make)
    note = {"calibrated_on": origin, "batches": len(checked), "layers": entry.meta["layers"]}
    return models.Quantized(key, entry.folder, note | ({"weight_bits": 7} if reduce_range else {}))


def _check_enough(mask: str | None, feeds: Sequence[Feeds]) -> None:
    """Refuse samples that show nothing, and warn of those that show little."""
    if mask is None:
        return  # which tokens are real is not known
    seen = sum(int(np.count_nonzero(each[mask])) for each in feeds)
    if not seen:
        raise InvalidFeeds(f"The samples for calibration have no real token: {mask!r} is 0 throughout")
    if seen < _FEW:
        warnings.warn(
            f"Calibrated on {seen} tokens, the model may be far off on others: MiniLM's least cosine to fp32 was 0.8 "
            "after one sentence, 0.96 after 98 tokens and 0.99 after 362. Give calibration= more texts or feeds",
            CalibrationWarning,
            stacklevel=2,
        )


def _quantize(
    backend: Backend,
    source: models.ModelSource,
    config: CompileConfig,
    feeds: list[Feeds],
    folder: Path,
    *,
    reduce_range: bool,
) -> int:
    """Run the model with the inputs of its dense layers as outputs, choose for each layer, and keep the table."""
    from isorun.graph import pipeline
    from isorun.graph.analysis import describe
    from isorun.graph.io import files
    from isorun.graph.ops import lower
    from isorun.graph.transforms import padding_removal
    from isorun.graph.transforms.precision import int8, ranges

    path = folder / "tapped.onnx"
    dialect = backend.capabilities.dialects[0]
    with files.reading(str(source.path)):
        graph, _ = pipeline.read(source.path, source.outputs)
        try:
            padding_removal.remove(graph)
        except UnsupportedModel:
            graph, _ = pipeline.read(source.path, source.outputs)
        weights, readers = int8.tap(graph)
        if not weights:
            raise UnsupportedModel(f"None of the model's dense layers can be quantized: {int8.refusal(graph)}")
        int8.check_finite(graph, weights)
        lowered = lower.lower(graph, dialect)
    files.write(lowered, path, beside_above=0)
    model = LoweredModel(path, dialect, source.fingerprint, describe.describe(lowered), False)
    executable = backend.compile(model, CompileConfig("fp32", config.device, config.threads))
    seen = {name: ranges.Seen() for name in weights}
    try:
        for each in feeds:
            for name, activations in zip(readers, executable.run(list(readers), each), strict=True):
                if activations.ndim > 2:  # a row for each token: what has one for each text (a pooler) is left alone
                    if not np.isfinite(activations).all():
                        raise InvalidModel(
                            f"{source.path} cannot be quantized: on the calibration feeds, {name!r}, which the dense "
                            f"layer {readers[name][0]!r} reads, is not finite. Use another precision"
                        )
                    for weight in readers[name]:
                        seen[weight].add(activations)
    finally:
        executable.close()
        for left in folder.iterdir():
            left.unlink()
    recipe = ranges.Recipe(reduce_range=reduce_range)
    table = {name: each.quantize(weights[name].numpy(), recipe) for name, each in seen.items() if each.rows}
    int8.save(table, folder)
    return len(table)


def has_text(source: models.ModelSource) -> bool:
    """Whether a tokenizer lies beside a model."""
    return any(place.is_file() for place in places_of(source.path))


def sample_feeds(
    source: models.ModelSource, info: ModelInfo, samples: Samples | None, cache: Cache
) -> tuple[list[Feeds], str]:
    """What to calibrate on, and a word for it.

    Args:
        source, info: the model.
        samples, cache: as in :func:`calibrate`.

    Raises:
        InvalidFeeds: the samples are no feeds and no texts, or random feeds cannot be made up.
    """
    if samples is None:
        if has_text(source):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", TruncationWarning)  # they are ours, and cut they do as well
                return _encoded(source, info, _SENTENCES.read_text().splitlines()), "isorun's sentences"
        warnings.warn(
            "There is no tokenizer beside the model, so it is calibrated on random tokens: what it quantizes to may "
            "not suit real text. Give calibration= texts or feeds",
            CalibrationWarning,
            stacklevel=2,
        )
        return _random(source, info, cache), "random tokens"
    texts = [each for each in samples if isinstance(each, str)]
    feeds = [each for each in samples if isinstance(each, Mapping)]
    if len(texts) + len(feeds) < len(samples) or (texts and feeds):
        kinds = " and ".join(sorted({type(each).__name__ for each in samples}))
        raise InvalidFeeds(
            f"The samples for calibration are {kinds}; they can be texts, or mappings of names to arrays"
        )
    return (_encoded(source, info, texts), f"{len(texts)} texts") if texts else (feeds, f"{len(feeds)} feeds")


def _encoded(source: models.ModelSource, info: ModelInfo, texts: Sequence[str]) -> list[Feeds]:
    """Texts of like length together, as feeds."""
    limits = [limit for limit in info.limits.values() if limit is not None]
    tokenizer = Tokenizer.beside(source.path, min(limits, default=None))
    ordered = sorted(texts, key=len)
    wanted = {spec.name for spec in info.inputs}
    batches: list[Feeds] = []
    for start in range(0, len(ordered), _ROWS):
        encoded = tokenizer.encode(ordered[start : start + _ROWS])
        batches.append({name: array for name, array in encoded.items() if name in wanted})
    return batches


def _random(source: models.ModelSource, info: ModelInfo, cache: Cache) -> list[Feeds]:
    """Seeded batches of random tokens, padded on the right."""
    rng = np.random.default_rng(0)
    mask_name = models.padding(source, cache).mask
    longest = min([limit for limit in info.limits.values() if limit is not None] + [_LONGEST])
    made: list[Feeds] = []
    for _ in range(_BATCHES):
        lengths = np.clip(np.exp(rng.normal(np.log(_MEDIAN), 0.6, _ROWS)), 1, longest).astype(int)
        mask = np.arange(lengths.max()) < lengths[:, None]
        feeds = {}
        for spec in info.inputs:
            if spec.dtype is None or spec.dtype.kind not in "iu" or spec.shape is None or len(spec.shape) != 2:
                raise InvalidFeeds(f"Input {spec.name!r} is {spec.type} {spec.shape}: give feeds for the calibration")
            least, most = spec.bounds or (0, 0)
            tokens = rng.integers(least, most, mask.shape, endpoint=True)
            feeds[spec.name] = (mask if spec.name == mask_name else tokens).astype(spec.dtype)
        made.append(feeds)
    return made
