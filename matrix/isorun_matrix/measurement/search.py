"""What a search, or a score by labels, keeps when a cell computes the vectors (:mod:`isorun.quality`).

The model's own file in fp32 computes the vectors that others are compared with, as for ``isorun choose``. A cell is fed
the texts in batches of its shape, as it is timed.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

from isorun import Session
from isorun.compilation.compiler import Compiler
from isorun.compilation.options import Options
from isorun.errors import BackendFailed, InvalidFeeds
from isorun.models.source import ModelSource, open_model
from isorun.models.vectors import TextVectors
from isorun.plugin import listing
from isorun.quality import Agreement, agreement
from isorun.quality.labels import Score
from isorun.system.cache import Cache
from isorun.tuning.accuracy import Run
from isorun.tuning.backend import with_own_file
from isorun.types import ModelInfo
from isorun_matrix.jobs import CellJob, PreparedModel, Workload
from isorun_matrix.measurement import feeds
from isorun_matrix.measurement.feeds import Arrays
from isorun_matrix.spec.quality import labels_of

_FEEDS, _VECTORS, _LABELS, _SKIPPED = "feeds", "vectors", "labels", "skipped"


def reference(workload: Workload, model: PreparedModel, info: ModelInfo, path: Path, notes: list[str]) -> int | None:
    """Compute the vectors of the texts of a workload in fp32.

    Args:
        path: the file that receives the texts as feeds, and their vectors.

    Returns:
        How many neighbours of a text are compared; ``None``, with a remark, if the model makes no vectors.

    Raises:
        BackendUnavailable: no backend runs the model's own file in fp32.
        InvalidFeeds: the model has no tokenizer, or a text has no token.
    """
    if workload.search is None:
        return None
    cache = Cache()
    source = _source(model, cache)
    vectors, why = TextVectors.find(source, info)
    if vectors is None or workload.sequence is None:
        why = why or f"the shape of {workload.id} has no sequence"
        notes.append(f"quality is not measured: {' '.join(why.split())}")
        return None
    batches = -(-len(workload.search) // workload.batch)
    cut: list[str] = []
    asked = replace(workload, texts=workload.search, feeds=batches)
    sets = feeds.tokenized(asked, model.origin, info, cut)
    if cut:
        _, limit, _ = cut[0].split(": ", 2)  # then the places of texts in the first batch with one
        notes.append(f"quality: texts are {limit.lower()}")
    texts = {name: np.concatenate([batch[name] for batch in sets]) for name in sets[0]}
    if info.mask is not None and not (info.attended(texts) != 0).any(axis=1).all():
        raise InvalidFeeds("A text of quality has no token. Remove it")
    usable = [backend for backend in listing.candidates(cache) if backend.status == "available"]
    computed, _ = with_own_file(
        Compiler(source, Options(precision="fp32"), cache),
        usable,
        lambda run: _vectors(run, vectors, texts, workload.batch),
    )
    labelled = np.frombuffer(json.dumps(workload.labels).encode(), np.uint8)
    judged = {_VECTORS: computed[: len(workload.search)], _LABELS: labelled}
    judged[_SKIPPED] = np.array(vectors.skipped)  # the tokenizer may be missing where a cell runs
    feeds.save(path, {_FEEDS: texts, _VECTORS: judged})
    return workload.neighbours


def kept(session: Session, job: CellJob, path: Path) -> Agreement | Score | None:
    """What is kept; ``None`` if the reference has no vectors.

    Args:
        path: the file of :func:`reference`.

    Raises:
        BackendFailed: a vector is not finite.
        InvalidArgument: the labels do not fit the model.
    """
    if job.reference.neighbours is None:
        return None
    judged = feeds.load(path, _VECTORS)
    expected, items = judged[_VECTORS], json.loads(judged[_LABELS].tobytes())
    vectors = TextVectors.of(_source(job.model, Cache()), session.model_info, int(judged[_SKIPPED]))
    computed = _vectors(lambda batch: session.run(None, batch), vectors, feeds.load(path, _FEEDS), job.cell.batch)
    if not np.isfinite(computed).all():
        raise BackendFailed(f"{job.cell.backend} computed a vector of a text that is not finite")
    computed = computed[: len(expected)]
    if items is not None:
        return labels_of(items).compare(expected, computed)
    return agreement(expected, computed, k=job.reference.neighbours)


def _source(model: PreparedModel, cache: Cache) -> ModelSource:
    return open_model(model.path, cache, model.outputs)


def _vectors(run: Run, vectors: Callable[..., np.ndarray], texts: Arrays, rows: int) -> np.ndarray:
    """The vectors of texts, in batches: (texts, width)."""
    starts = range(0, len(next(iter(texts.values()))), rows)
    batches = ({name: array[start : start + rows] for name, array in texts.items()} for start in starts)
    return np.concatenate([vectors(run(batch), batch) for batch in batches])
