"""Paths that a model's files name: which of them may be read.

A file is accepted if it is below the model's folder with symbolic links resolved. In the cache of the Hugging Face hub,
where all files are links, the repository's ``blobs`` are accepted too, and if the configuration of another folder is a
link, files below its target's folder. Hard links are accepted: package managers and caches use them to share files.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path, PurePosixPath, PureWindowsPath

from isorun.errors import InvalidModel

_ANCHORS = ("config.json", "modules.json")


def is_relative(location: str) -> bool:
    """Whether a path leads down: it is not empty, not absolute, and has no ``..``."""
    paths = (PurePosixPath(location), PureWindowsPath(location))
    return (
        bool(location)
        and "\0" not in location
        and not any(path.is_absolute() or path.drive or ".." in path.parts for path in paths)
    )


def resolved(folder: Path, location: str, homes: Iterable[Path]) -> Path | None:
    """The target of a path below a folder; ``None`` if it is in none of some folders. Raises ``OSError`` or
    ``RuntimeError`` if it cannot be resolved, for instance because of a loop of links."""
    if not is_relative(location):
        return None
    target = (folder / location).resolve()
    return target if any(target.is_relative_to(home) for home in homes) else None


def inside(folder: Path, location: str) -> Path:
    """``folder / location``, a path that a file of a model names, or a file of the model; it need not exist.

    Args:
        folder: the model's folder.
        location: relative to it; ``""`` for the folder itself.

    Raises:
        InvalidModel: the path leads out of the folder.
    """
    if not location or location == ".":
        return folder
    try:
        homes = {folder.resolve(), *((folder / anchor).resolve().parent for anchor in _ANCHORS)}
        homes |= {place.parent / "blobs" for place in folder.resolve().parents if place.name == "snapshots"}
        target = resolved(folder, location, homes)
        if target is not None:
            with suppress(FileNotFoundError, NotADirectoryError):
                target.stat()  # its name may be too long, or a link a loop
    except (OSError, RuntimeError, ValueError) as error:
        raise InvalidModel(f"{folder} names {location[:80]!r}, which cannot be read: {str(error)[:160]}") from error
    if target is None:
        raise InvalidModel(
            f"{folder} names {location!r}, which is outside the model's folder. Move it below that folder"
        )
    return folder / location
