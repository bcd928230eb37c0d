"""The head that a task needs: its outputs and the names of its classes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from isorun.errors import InvalidModel, UnsupportedModel
from isorun.graph.tasks import TOKENS, WORDS
from isorun.models import heads, keys, sentences
from isorun.models.sentence_settings import SentenceSettings

LOGITS = "logits"


def head_outputs(
    folder: Path, outputs: dict[str, int], task: str, names: Sequence[str] = (LOGITS,), *, instead: str
) -> list[str]:
    """The outputs of a head.

    Args:
        folder: the checkpoint, or the folder with the settings of an ONNX file.
        outputs: the names and ranks of an ONNX file's outputs; empty for a checkpoint.
        task: one of :data:`isorun.graph.tasks.TASKS`.
        names: what its outputs are called.
        instead: what to use a model without such a head with.

    Raises:
        InvalidModel: the model has no such head.
        UnsupportedModel: isorun does not build it for this kind of encoder.
    """
    if not outputs:
        heads.check_task(sentences.transformer_folder(folder), task, instead)
    elif missing := [name for name in names if name not in outputs]:
        raise InvalidModel(
            f"The model has no output {missing[0]!r}, only {', '.join(outputs)}. Use a model with a head for {task}"
        )
    else:
        _check_file(folder, outputs, task, names, instead)
    return list(names)


def _check_file(folder: Path, outputs: dict[str, int], task: str, names: Sequence[str], instead: str) -> None:
    """Reject an ONNX file that is known to be for another task: outputs of all tasks have the same name."""
    rank = 3 if task in (TOKENS, WORDS) else 2
    if others := [f"{name!r} has {outputs[name]}" for name in names if outputs[name] not in (0, rank)]:
        raise InvalidModel(f"For {task}, outputs must have {rank} dimensions, and {others[0]}. {instead}")
    path = folder / "config.json"
    settings = keys.read_object(path) if path.is_file() else {}
    stated = heads.named(settings, lambda why: InvalidModel(f"{path}: {why}"))
    if stated not in (None, task):
        raise InvalidModel(f"{path} names a model for {stated}, not for {task}. {instead}")


def labels_of(settings: SentenceSettings, shape: Sequence[int | str | None], default: str = "LABEL_{}") -> list[str]:
    """The names of the classes.

    Args:
        settings: of the model.
        shape: the logits', of which the last dimension is the number of classes.
        default: the name of a class that has none, with ``{}`` for its number.

    Raises:
        InvalidModel: the number of classes is not known.
    """
    if not shape or not isinstance(shape[-1], int):
        raise InvalidModel(f"{LOGITS!r} must have a class in each of its last dimension, got shape {tuple(shape)}")
    return [settings.labels.get(str(index), default.format(index)) for index in range(shape[-1])]


def reject_modules(settings: SentenceSettings) -> None:
    """Reject a model whose logits sentence-transformers' modules would change.

    Raises:
        UnsupportedModel: it has a pooling or dense layers of its own.
    """
    if settings.pooling or settings.steps:
        raise UnsupportedModel("A classifier with a pooling or dense layers is not supported. Export it to ONNX")
