"""The head that a checkpoint's ``config.json`` names, and what of it depends on settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from isorun.errors import InvalidModel, UnsupportedModel, did_you_mean
from isorun.graph.tasks import ANSWERS, SEQUENCE, TASKS, TOKENS, WORDS
from isorun.models import config_keys
from isorun.models.weights import SafeTensors

if TYPE_CHECKING:
    from isorun.graph.builders.architecture import Head

TITLES: Mapping[str, str] = {
    SEQUENCE: "classes of texts",
    TOKENS: "classes of tokens",
    ANSWERS: "answers",
    WORDS: "masked words",
}
"""The tasks in words."""
_POOLINGS = {"cls": "first", "bos": "first", "mean": "mean", "late": "late"}
_DEFAULT_POOLING = {"modernbert": "cls", "eurobert": "late"}


def of(
    settings: Mapping[str, Any],
    known: Mapping[str, Head],
    weights: SafeTensors,
    invalid: Callable[[str], InvalidModel],
    inner: int | None = None,
) -> tuple[str | None, Head | None]:
    """The task of a checkpoint and the layers of its head; ``None`` twice if the family has no such head.

    Args:
        settings: the content of ``config.json``.
        known: the heads of the family, by task.
        weights: the checkpoint's tensors.
        invalid: makes an error about ``config.json``.
        inner: the width of the table of words, if it differs from the encoder's.

    Raises:
        InvalidModel: a setting of the head is invalid.
    """
    from isorun.graph.builders import activations

    task = named(settings, invalid)
    if task is None or task not in known:
        return None, None
    head = _selected(known[task], settings)
    if _missing(head, task, weights):
        return None, None
    key = head.activation
    if head.dense is not None and key not in activations.NAMES:  # a key of config.json
        name = settings.get(key, "gelu")
        if name not in activations.NAMES:
            raise invalid(f"unsupported {key} {name!r}{did_you_mean(str(name), activations.NAMES)}")
        head = replace(head, activation=name)
    if head.reads == "classifier_pooling":
        default = _DEFAULT_POOLING[settings["model_type"]]
        pooling = settings.get("classifier_pooling", settings.get("clf_pooling", default))
        known_poolings = ("cls", "mean") if settings["model_type"] == "modernbert" else tuple(_POOLINGS)
        if pooling not in known_poolings:
            raise invalid(f"classifier_pooling must be one of {', '.join(known_poolings)}, got {pooling!r}")
        head = replace(head, reads=_POOLINGS[pooling])
    if head.reads == "last" and settings.get("pad_token_id") is None:
        raise invalid("pad_token_id must be set, to find the last token of a text, which the classifier reads")
    flags: dict[str, Any] = {name: settings.get(key, default) for name, (key, default) in head.flags.items()}
    head = replace(head, inner=inner if task == WORDS else head.inner, **flags)
    return task, _with_tensors(head, settings, weights)


def of_words(
    settings: Mapping[str, Any],
    words: tuple[int, int | None],
    vocabulary: int,
    weights: SafeTensors,
    invalid: Callable[[str], InvalidModel],
) -> Head:
    """The head of a causal reranker: the logits of words at the end of a text.

    Args:
        settings, weights, invalid: as for :func:`of`.
        words: the number of the word whose logit counts, and of the one whose logit is subtracted, if any.
        vocabulary: the number of words.

    Raises:
        InvalidModel: there is no such word.
    """
    from isorun.graph.builders.architecture import Head

    if beyond := [word for word in words if word is not None and word >= vocabulary]:
        raise invalid(f"vocab_size is {vocabulary}, and the score is that of token {beyond[0]}")
    head = Head("lm_head", "end", has_bias=False, tied="embed_tokens", words=words)
    return _with_tensors(head, settings, weights)


def check_task(folder: Path, task: str, instead: str) -> None:
    """Reject a checkpoint of which :func:`of` makes no head for a task.

    Args:
        folder: the checkpoint.
        task: one of :data:`isorun.graph.tasks.TASKS`.
        instead: what to use such a checkpoint with.

    Raises:
        InvalidModel: ``config.json`` names no such head, or only the encoder was saved.
        UnsupportedModel: isorun does not build it for this kind of encoder.
    """
    path, settings = folder / "config.json", config_keys.read(folder)
    names = settings.get("architectures") or []
    ending = next(ending for ending, named in TASKS.items() if named == task)
    if named(settings, lambda why: InvalidModel(f"{path}: {why}")) != task:
        raise InvalidModel(f"{path}: architectures must name a model {ending}, got {names!r}. {instead}")
    kind = settings.get("model_type")
    if task not in known(kind):
        raise UnsupportedModel(
            f"{path}: isorun does not build the head of {', '.join(map(str, names))} (model_type {kind!r}). Export the "
            "model to ONNX and pass that file"
        )
    if tensor := _missing(_selected(known(kind)[task], settings), task, SafeTensors(folder, "")):
        raise InvalidModel(
            f"{folder} has no tensor {tensor!r}, so the head of {', '.join(names)}, which config.json names, was not "
            f"saved. {instead}"
        )


def known(kind: Any) -> Mapping[str, Head]:
    """The heads that isorun builds for a ``model_type``, by task."""
    from isorun.graph.builders.architectures import ARCHITECTURES

    return ARCHITECTURES[kind].heads if kind in ARCHITECTURES else {}


def families() -> Mapping[str, Set[str]]:
    """The tasks whose heads isorun builds, by ``model_type``, in the order of the alphabet."""
    from isorun.graph.builders.architectures import ARCHITECTURES

    return {kind: known(kind).keys() for kind in sorted(ARCHITECTURES)}


def named(settings: Mapping[str, Any], invalid: Callable[[str], InvalidModel]) -> str | None:
    """The task that ``architectures`` names, if any.

    Raises:
        InvalidModel: it is not a list of names.
    """
    architectures = settings.get("architectures") or []
    if not isinstance(architectures, list) or not all(isinstance(name, str) for name in architectures):
        raise invalid(f"architectures must be a list of names, got {architectures!r}")
    tasks = (task for name in architectures for ending, task in TASKS.items() if name.endswith(ending))
    return next(tasks, None)


def labels(settings: Mapping[str, Any], task: str | None, words: int, invalid: Callable[[str], InvalidModel]) -> int:
    """The width of the logits: the number of classes (2 by default), of words, or the two ends of an answer."""
    if task in (ANSWERS, WORDS):
        return 2 if task == ANSWERS else words
    if "id2label" in settings:
        names = settings["id2label"]
        if not isinstance(names, dict) or not names:
            raise invalid(f"id2label must be an object with a name for each class, got {names!r}")
        return len(names)
    count = settings.get("num_labels", 2)
    if type(count) is not int or count < 1:
        raise invalid(f"num_labels must be an integer above 0, got {count!r}")
    return count


def _selected(head: Head, settings: Mapping[str, Any]) -> Head:
    """A head, or the one in its place where a key of ``config.json`` is false."""
    if head.unless is None or settings.get(head.unless[0], True):
        return head
    return head.unless[1]


def _missing(head: Head, task: str, weights: SafeTensors) -> str | None:
    """The first tensor of a head for masked words if it is not stored: models are published with the encoder alone."""
    tensor = f"{head.dense}.weight"
    return tensor if task == WORDS and head.dense is not None and tensor not in weights else None


def _with_tensors(head: Head, settings: Mapping[str, Any], weights: SafeTensors) -> Head:
    """A head by the tensors that are stored, as in transformers: those of the last layer, or else the shared ones."""
    tied, bias = head.tied, head.bias
    if f"{head.output}.weight" in weights or not settings.get("tie_word_embeddings", True):
        tied = None
    if bias and f"{head.output}.bias" in weights:
        weights.account(bias)
        bias = ""
    return replace(head, tied=tied, bias=bias)
