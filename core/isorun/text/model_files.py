"""Where the files of a text model are."""

from __future__ import annotations

import os
from pathlib import Path

from isorun.errors import InvalidModel
from isorun.models.hub import checkpoint_folder
from isorun.models.tokenizer import places_of
from isorun.system.arguments import check_path
from isorun.system.cache import Cache, expanded


def find_model(model: str | os.PathLike[str], cache: Cache) -> Path:
    """The folder of a checkpoint or the ONNX file for what a caller passes; a name is downloaded.

    Raises:
        InvalidModel: there is none.
    """
    check_path(model, "model")
    path = expanded(model)
    if path.exists():
        return path.absolute()
    if path.suffix == ".onnx" or path.is_absolute():
        raise InvalidModel(f"There is no model at {path}")
    return checkpoint_folder(os.fspath(model), cache)


def settings_folder(model: Path) -> Path:
    """The folder with a text model's settings: the file's own, or the one above, where Optimum leaves them: it has
    ``modules.json``, or ``config.json`` with the tokenizer that the model is read with."""
    own, above = model.parent, model.parent.parent
    for folder in (own, above):
        if (folder / "modules.json").is_file():
            return folder
    if (own / "config.json").is_file() or not (above / "config.json").is_file():
        return own
    tokenizer = next((place for place in places_of(model) if place.is_file()), None)
    return above if tokenizer is not None and tokenizer.parent == above else own
