"""Run a recorded run again, on this machine or another: the spec in ``run.json``, with the same models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from isorun.errors import SpecError, did_you_mean
from isorun_matrix.results import reader
from isorun_matrix.results.records import RunRecord
from isorun_matrix.spec.reader import place_of, sentence
from isorun_matrix.spec.spec import Spec

Content = TypeVar("Content", bound=BaseModel)


def replaced(models: Mapping[str, Mapping[str, Any]], items: Sequence[str]) -> dict[str, dict[str, Any]]:
    """The models, as plain data, that have another file or folder; ``items`` are ``NAME=PATH``. Raises ``SpecError``
    for one of another form, or if there is no such model."""
    changed = {}
    for item in items:
        name, _, place = item.partition("=")
        if not place:
            raise SpecError(f"--model {item!r} must be NAME=PATH, the name of a model and its file or folder")
        if name not in models:
            raise SpecError(f"--model {item!r}: unknown model {name!r}{did_you_mean(name, models)}")
        source = "checkpoint" if Path(place).is_dir() else "path"
        none = dict.fromkeys(("path", "checkpoint", "preset", "seed"))
        changed[name] = {**models[name], **none, source: str(Path(place).absolute())}
    return changed


def load(path: Path, models: Sequence[str]) -> tuple[Spec, Mapping[str, str]]:
    """The spec of a run, and the fingerprints of its models.

    Args:
        path: of ``run.json``.
        models: for models that are elsewhere on this machine, ``NAME=PATH``.

    Raises:
        SpecError: the file is damaged, or a model or a folder of an environment is not where it was.
    """
    record = reader.read(path, RunRecord)
    content = record.spec.model_dump(mode="json")
    content["models"] |= replaced(content["models"], models)
    why = f"{path} cannot be run here. Give the place of a model with --model NAME=PATH"
    return validated(content, why, Spec), record.fingerprints


def validated(content: Mapping[str, Any], why: str, kind: type[Content]) -> Content:
    """A spec, or a part of one, from plain data. Raises ``SpecError``, with ``why`` and each problem, if it is
    invalid."""
    try:
        return kind.model_validate(content)
    except ValidationError as error:
        lines = [f"{'.'.join(map(str, place_of(problem)))}: {sentence(problem, kind)}" for problem in error.errors()]
        raise SpecError(f"{why}:\n  " + "\n  ".join(lines)) from None
