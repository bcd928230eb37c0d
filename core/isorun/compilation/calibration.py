"""Calibration: a model's dense layers are quantized for the activations that they see in use.

The model runs in fp32 on the backend that it is quantized for, with padding removed if possible, so that only real
tokens count. The result is cached by the model and the feeds, and is the same for every backend.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from isorun.compilation import corpus
from isorun.compilation.compiled_model import CompiledModel
from isorun.errors import InvalidModel, UnsupportedModel
from isorun.models.lowering import ModelGraphs, Quantized
from isorun.plugin.backend import Backend
from isorun.system.cache import sha256, versioned
from isorun.system.caller_warnings import warn
from isorun.system.hardware import has_vnni
from isorun.system.progress import logged
from isorun.types import INDEX_ERRORS, CompileConfig, Feeds, LoweredModel, ModelInfo

if TYPE_CHECKING:
    from isorun.graph.transforms.precision.int8 import QuantizedDense
    from isorun.graph.transforms.precision.ranges import ActivationStats

_FEW = 256  # real tokens: MiniLM's minimum cosine on text was 0.998 with 382 of them, 0.98 with 164, 0.84 with 37


class CalibrationWarning(UserWarning):
    """A model is quantized without samples of what it is used for, or with too few."""


def calibrate(
    graphs: ModelGraphs, backend: Backend, config: CompileConfig, samples: corpus.Samples | None
) -> Quantized:
    """Quantize a model's dense layers.

    Args:
        backend: runs the model in fp32.
        config: the threads to run it with.
        samples: what to feed it; to texts, those that come with isorun are added, since the model may see other kinds.
            ``None`` for these alone, by the tokenizer beside the model; without a tokenizer, for seeded random feeds,
            with a :class:`CalibrationWarning`. Feeds with fewer than 256 real tokens give that warning as well.

    Raises:
        UnsupportedModel: the model has no dense layers in the fused form that can be quantized.
        InvalidFeeds: the samples are empty or have no real token, or the model does not accept them.
    """
    if not graphs.info.fused:
        raise UnsupportedModel(
            "Only encoders can be quantized, and isorun does not recognize the model as one. Use another precision"
        )
    feeds, origin = _feeds(graphs, samples)
    _warn_of_few(graphs.info, feeds)
    reduce_range = not has_vnni()
    digest = sha256(repr([corpus.content(batch) for batch in feeds]).encode())
    key = graphs.form(digest, str(reduce_range))
    key = versioned(key, "lowering", "calibration")

    def make(folder: Path) -> dict[str, Any]:
        with logged("calibrated %s on %s", graphs.source.path, origin):
            table = _quantize(graphs, backend, config, feeds, folder, reduce_range=reduce_range)
            return {"layers": len(table), "outliers": sum(layer.outliers.size for layer in table.values())}

    private = graphs.private or samples is not None  # a table tells about the samples
    entry = graphs.cache.get_or_make("calibrated", key, make, models=graphs.source.models, private=private)
    note = {"calibrated_on": origin, "samples": digest[:16], "batches": len(feeds), **entry.meta}
    return Quantized(key, entry.folder, note | ({"weight_bits": 7} if reduce_range else {}))


def _feeds(graphs: ModelGraphs, samples: corpus.Samples | None) -> tuple[list[Feeds], str]:
    """What to calibrate on, and where it comes from."""
    if samples is not None:
        feeds = corpus.as_feeds(graphs, samples)
        if isinstance(samples[0], str):
            return [*feeds, *corpus.own_texts(graphs)], f"{len(samples)} texts and isorun's"
        return feeds, f"{len(samples)} feeds"
    if corpus.has_tokenizer(graphs):
        return corpus.own_texts(graphs), "isorun's texts"
    warn(
        "There is no tokenizer beside the model, so it is calibrated on random tokens, which may not suit real text. "
        "Pass texts or feeds as calibration=",
        CalibrationWarning,
    )
    return corpus.random_batches(graphs.info), "random tokens"


def _warn_of_few(info: ModelInfo, feeds: Sequence[Feeds]) -> None:
    """Warn of samples with few real tokens."""
    if info.mask is None:
        return  # which tokens are real is not known
    masks = (info.attended(batch) for batch in feeds)
    tokens = sum(int(np.count_nonzero(mask)) for mask in masks if mask is not None)
    if tokens < _FEW:
        warn(
            f"Calibrated on {tokens} tokens, the model may be inaccurate on others: MiniLM's minimum cosine to fp32 "
            "was 0.75 after one sentence, 0.98 after 164 tokens and 0.998 after 382. Pass more texts or feeds as "
            "calibration=",
            CalibrationWarning,
        )


def _quantize(
    graphs: ModelGraphs,
    backend: Backend,
    config: CompileConfig,
    feeds: list[Feeds],
    folder: Path,
    *,
    reduce_range: bool,
) -> dict[str, QuantizedDense]:
    """Run the model with the inputs of its dense layers as outputs, and write each layer's weights and scales."""
    from isorun.graph import model_info
    from isorun.graph.pipeline import Target
    from isorun.graph.transforms.precision import int8, ranges

    path, dialect = folder / "tapped.onnx", backend.capabilities.dialects[0]
    packed = not graphs.info.keeps_padding and backend.capabilities.data_dependent_shapes
    checks = not backend.capabilities.checks_indices
    graph, job = graphs.write(Target(packed=packed, taps=True, dialect=dialect, checks=checks), path)
    info = model_info.describe(graph)
    info = replace(info, outputs=tuple(spec for spec in info.outputs if spec.name != INDEX_ERRORS))
    model = LoweredModel(path, dialect, graphs.source.fingerprint, info, False, job.notes)
    # On the first device: others, such as an NPU, may not compute in fp32.
    plain = CompileConfig("fp32", backend.capabilities.devices[0], config.threads)
    compiled = CompiledModel(backend, plain, model)
    seen = {name: ranges.ActivationStats(len(feeds)) for name in job.weights}
    try:
        for number, batch in enumerate(feeds):
            values = dict(zip(job.readers, compiled.run(list(job.readers), batch), strict=True))
            _observe(values, number, job.readers, seen, graphs.source.path)
    finally:
        compiled.close()
        for temporary in folder.iterdir():
            temporary.unlink()
    table = {
        name: layer.quantize(
            job.weights[name].numpy(), ranges.Recipe(reduce_range=reduce_range, smooth=name not in job.unsmoothed)
        )
        for name, layer in seen.items()
        if layer.rows
    }
    int8.save(table, folder)
    return table


def _observe(
    values: dict[str, np.ndarray],
    number: int,
    readers: Mapping[str, list[str]],
    seen: dict[str, ActivationStats],
    path: Path,
) -> None:
    """Record the activations of a batch, by its number, that each dense layer read."""
    for name, activations in values.items():
        if activations.ndim <= 2:  # one row per text, as a pooler reads: not quantized
            continue
        if not np.isfinite(activations).all():
            raise InvalidModel(
                f"{path} cannot be quantized: {name!r}, an input of the dense layer {readers[name][0]!r}, is not "
                "finite on the calibration feeds. Use another precision"
            )
        for weight in readers[name]:
            seen[weight].add(activations, number)
