"""Where the files of a text model are."""

from __future__ import annotations

import os
from pathlib import Path

from isorun.errors import InvalidModel
from isorun.models.hub import checkpoint_folder
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
