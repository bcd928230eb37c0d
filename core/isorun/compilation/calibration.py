"""Calibration: what a model's dense layers are given in use, seen once, so that they can be quantized.

The model runs in fp32 on the backend that it is quantized for, its padding removed where it can be, so that only real
tokens count. What comes of it is kept by the model, the feeds and the recipe, and is the same for every backend.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from isorun.compilation import corpus
from isorun.errors import InvalidModel, UnsupportedModel
from isorun.graph import code_digest
from isorun.models import source as models
from isorun.plugin.backend import Backend
from isorun.system.cache import Cache, sha256
from isorun.system.hardware import cpu_flags
from isorun.types import CompileConfig, Feeds, LoweredModel, ModelInfo

_FEW = 256  # real tokens: MiniLM's least cosine on text was 0.99 with 362 of them, 0.96 with 98, 0.88 with 39
_VNNI = ("avx512_vnni", "avx_vnni", "amx_int8")


class CalibrationWarning(UserWarning):
    """A model is quantized without having seen what it is used for, or too little of it."""


def calibrate(
    backend: Backend, source: models.ModelSource, config: CompileConfig, samples: corpus.Samples | None, cache: Cache
) -> models.Quantized:
    """The table of a model's quantized layers.

    Args:
        backend: runs the model in fp32.
        source: the model.
        config: the device and threads to run it with.
        samples: what to feed it. ``None`` for the texts that come with isorun, by the tokenizer beside the model;
            where it has none, for seeded random feeds, with a :class:`CalibrationWarning`. Samples with fewer than 256
            real tokens give that warning as well.
        cache: where the table is kept.

    Raises:
        UnsupportedModel: the model has no dense layers in the fused form that can be quantized.
        InvalidFeeds: there are no samples, or none with a real token, or the model does not take them.
    """
    info, _ = models.inspect(source, cache)
    if not info.fused:
        raise UnsupportedModel("The model is no encoder that isorun knows, so there is nothing to quantize")
    feeds, origin = _feeds(source, info, samples)
    _warn_of_few(info.mask, feeds)
    reduce_range = not cpu_flags().intersection(_VNNI)
    digest = sha256(b"".join(name.encode() + np.asarray(each[name]).tobytes() for each in feeds for name in each))
    key = sha256(f"{code_digest()}|{source.fingerprint}|{digest}|{reduce_range}".encode())[:40]

    def make(folder: Path) -> dict[str, Any]:
        return {"layers": _quantize(backend, source, config, feeds, folder, reduce_range=reduce_range)}

    entry = cache.get_or_make("calibrated", key, make)
    note = {"calibrated_on": origin, "batches": len(feeds), "layers": entry.meta["layers"]}
    return models.Quantized(key, entry.folder, note | ({"weight_bits": 7} if reduce_range else {}))


def _feeds(source: models.ModelSource, info: ModelInfo, samples: corpus.Samples | None) -> tuple[list[Feeds], str]:
    """What to calibrate on, and where it comes from."""
    if samples is not None:
        kind = "texts" if samples and isinstance(samples[0], str) else "feeds"
        return corpus.as_feeds(source, info, samples), f"{len(samples)} {kind}"
    if corpus.has_tokenizer(source):
        return corpus.own_texts(source, info), "isorun's texts"
    warnings.warn(
        "There is no tokenizer beside the model, so it is calibrated on random tokens, which may not suit real text. "
        "Pass texts or feeds as calibration=",
        CalibrationWarning,
        stacklevel=2,
    )
    return corpus.random_batches(info), "random tokens"


def _warn_of_few(mask: str | None, feeds: Sequence[Feeds]) -> None:
    """Warn of samples that show little of what a model is used for."""
    if mask is None:
        return  # which tokens are real is not known
    seen = sum(int(np.count_nonzero(each[mask])) for each in feeds if mask in each)
    if seen < _FEW:
        warnings.warn(
            f"Calibrated on {seen} tokens, the model may be far off on others: MiniLM's least cosine to fp32 was 0.8 "
            "after one sentence, 0.96 after 98 tokens and 0.99 after 362. Pass more texts or feeds as calibration=",
            CalibrationWarning,
            stacklevel=3,
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
    from isorun.graph import describe, pipeline
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
    seen = {name: ranges.Seen(len(feeds)) for name in weights}
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
