"""Opening the models that a command line names, each as what its files say it is for."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from isorun.errors import InvalidArgument, InvalidModel, UnsupportedModel, did_you_mean
from isorun.graph.tasks import ANSWERS, SEQUENCE, TOKENS
from isorun.models import heads, keys, sentences
from isorun.models.lowering import info_of
from isorun.models.modules import STATIC_SPARSE
from isorun.models.tokenizer import places_of
from isorun.session.session import Session
from isorun.system.cache import Cache, expanded
from isorun.text.classifier import Classifier
from isorun.text.cross_encoder import CrossEncoder
from isorun.text.embedder import Embedder
from isorun.text.heads import LOGITS
from isorun.text.sparse_embedder import POOLED, SparseEmbedder
from isorun_serve.models import CLASSIFY, EMBED, RERANK, SPARSE, TASKS, TENSORS, Models, Served, named_in_errors

_RESERVED = re.compile(r"/(?:ready|infer)?$|/versions/")
_NOT_SERVED = (TOKENS, ANSWERS)
_CLASSES: Mapping[str, type[SparseEmbedder | CrossEncoder | Classifier]] = {
    SPARSE: SparseEmbedder,
    RERANK: CrossEncoder,
    CLASSIFY: Classifier,
}


class Named(NamedTuple):
    """A model of the command line.

    Attributes:
        name: what clients call it.
        model: a path, a short name or a hub id.
        task: what it is for; ``None`` to tell by its files.
    """

    name: str
    model: str
    task: str | None


def named(models: Sequence[str], tasks: Sequence[str]) -> list[Named]:
    """The models of ``MODEL`` or ``NAME=MODEL``, and the tasks of ``NAME=TASK``.

    Raises:
        InvalidArgument: a name is used twice or unknown, or there is no such task.
    """
    by_name: dict[str, str] = {}
    for text in models:
        name, equals, model = text.partition("=")
        if not equals or expanded(text).exists():
            name, model = _default_name(text), text
        if not (name and model):
            raise InvalidArgument(f"Invalid model {text!r}: expected MODEL or NAME=MODEL")
        if reserved := _RESERVED.search(name):
            raise InvalidArgument(
                f"The name {name!r} is not possible: requests could not reach it, as {reserved[0]!r} in a path of the "
                "Open Inference Protocol is not part of a name. Choose another one: NAME=MODEL"
            )
        if name in by_name:
            raise InvalidArgument(f"Two models are called {name!r}. Name one of them: NAME=MODEL")
        by_name[name] = model
    chosen: dict[str, str] = {}
    for text in tasks:
        name, equals, task = text.rpartition("=")
        if not equals:
            raise InvalidArgument(f"Invalid --task {text!r}: expected NAME=TASK")
        if name not in by_name:
            raise InvalidArgument(f"Invalid --task {text!r}: no model is called {name!r}{did_you_mean(name, by_name)}")
        if task not in TASKS:
            raise InvalidArgument(f"Invalid --task {text!r}: there is no task {task!r}{did_you_mean(task, TASKS)}")
        if chosen.get(name, task) != task:
            raise InvalidArgument(f"Two tasks are chosen for {name!r}: {chosen[name]} and {task}")
        chosen[name] = task
    return [Named(name, model, chosen.get(name)) for name, model in by_name.items()]


def _default_name(model: str) -> str:
    path = expanded(model)
    if not path.exists():
        return model
    return path.stem if path.is_file() else path.resolve().name


def open_models(
    models: Sequence[Named],
    paths: Mapping[str, Path],
    session_options: Mapping[str, Any],
    *,
    pooling: str | None = None,
    max_length: int | None = None,
) -> Models:
    """Open models.

    Args:
        models: what to open.
        paths: the file or folder of each, by name.
        session_options: arguments of :class:`isorun.Session`.
        pooling: of embedders, where nothing says how to pool.
        max_length: the maximum number of tokens of a text.

    Raises:
        InvalidArgument: an argument is for a task that no model has.
        UnsupportedModel: the default route of a sparse encoder has no model, or a reranker has several classes.
        IsorunError: as :class:`isorun.Embedder` and the others; nothing stays open.
    """
    kinds = {name: task or task_of(paths[name]) for name, _, task in models}
    if pooling is not None and EMBED not in kinds.values():
        raise InvalidArgument("--pooling has no effect: no model embeds texts. Omit it")
    if max_length is not None and {*kinds.values()} == {TENSORS}:
        raise InvalidArgument("--max-length has no effect: no model reads texts. Omit it")
    opened: list[Served] = []
    try:
        for name, kind in kinds.items():
            path = paths[name]
            text_options = {**session_options, "max_length": max_length}
            model: Embedder | SparseEmbedder | CrossEncoder | Classifier | Session
            with named_in_errors(name):
                if kind == EMBED:
                    model = Embedder(path, pooling=pooling, **text_options)
                elif kind == TENSORS:
                    model = Session(path, **session_options)
                else:
                    model = _CLASSES[kind](path, **text_options)
            opened.append(Served.of(name, model))
            if isinstance(model, SparseEmbedder):
                _check_default_route(path, model)
            if isinstance(model, CrossEncoder):
                _check_one_class(name, model)
    except BaseException:
        Models(opened).close()
        raise
    return Models(opened)


def _check_default_route(path: Path, embedder: SparseEmbedder) -> None:
    """Refuse a sparse encoder whose default route, the one that requests get, looks words up instead of running."""
    route = embedder.modules.route(None)
    first = next(iter(embedder.modules.of(route)), None)
    if first is not None and first.kind == STATIC_SPARSE:
        raise UnsupportedModel(
            f"{path}: a server uses the default route of a sparse encoder, and here it is {route!r}, which has no "
            "model. Set default_route in its router_config.json to the route for documents, and use "
            "isorun.SparseEmbedder for queries"
        )


def _check_one_class(name: str, encoder: CrossEncoder) -> None:
    if (count := len(encoder.labels)) != 1:
        raise UnsupportedModel(f"{name} has {count} classes, and a reranker has one. Pass --task {name}={CLASSIFY}")


def task_of(path: Path) -> str:
    """What a model is for, by its files: a checkpoint's ``config.json``, or an ONNX file's outputs and tokenizer.

    Raises:
        InvalidModel: the files do not say it, or it is something that a server does not offer.
    """
    if not path.is_dir():
        if not any(place.is_file() for place in places_of(path)):
            return TENSORS
        shapes = {spec.name: spec.shape or () for spec in info_of(path, Cache()).outputs}
        logits = shapes.get(LOGITS, ())
        if len(logits) == 2:
            return RERANK if logits[-1] == 1 else CLASSIFY
        if len(shapes.get(POOLED, ())) == 2:
            return SPARSE
        return EMBED if any(len(shape) == 3 for shape in shapes.values()) or "sentence_embedding" in shapes else TENSORS
    settings = sentences.read(path)
    if settings.splade is not None or settings.saved_as == "SparseEncoder":
        return SPARSE
    if settings.logit_score is not None:
        return RERANK
    if settings.static:
        return EMBED
    folder = sentences.transformer_folder(path)
    if not (folder / "config.json").is_file():
        raise InvalidModel(
            f"Cannot tell what {path} is for: {folder} has no config.json. Name its ONNX file, or choose with "
            f"--task NAME=TASK ({', '.join(TASKS)})"
        )
    config = keys.read_object(folder / "config.json")
    head = heads.named(config, lambda why: InvalidModel(f"{folder / 'config.json'}: {why}"))
    if head in _NOT_SERVED:
        raise InvalidModel(
            f"{path} is a model for {heads.TITLES[head]}, which no protocol of this server has. Add --task "
            f"NAME={EMBED} for the vectors of its encoder, or name its ONNX file with --task NAME={TENSORS}"
        )
    if head != SEQUENCE:
        return EMBED
    labels = config.get("num_labels", len(config.get("id2label") or ("LABEL_0", "LABEL_1")))
    return RERANK if labels == 1 else CLASSIFY
