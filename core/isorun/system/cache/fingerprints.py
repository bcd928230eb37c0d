"""Stored fingerprints of files, since hashing a model takes longer than loading it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

from isorun.errors import InvalidModel
from isorun.system.cache import files, trust

_ATTEMPTS = 3


def note_name(main: str | Path) -> str:
    """The name of the note with the fingerprint of a file."""
    return files.sha256(os.fsencode(main))


def stored(note: Path, main: Path) -> str | None:
    """The fingerprint in a note, if the note is valid and of ``main``, and none of its files has changed. Raises
    ``CacheError`` if the note is not trusted."""
    trust.check(note)
    try:
        known = files.unsealed(note)
        listed = known["files"]
        if listed[0][0] == str(main) and all(files.stamp(Path(path)) == stamp for path, stamp in listed):
            return str(known["sha256"])
    except (OSError, ValueError, KeyError, TypeError, IndexError):
        pass  # missing or damaged: the caller hashes
    return None


def take(paths: Callable[[], list[Path]], main: Path) -> tuple[str, bytes | None]:
    """Hash files, again if they change meanwhile.

    Args:
        paths: lists the files, ``main`` first; it may have to read ``main``.
        main: the first of them.

    Returns:
        SHA-256 over all files (hexadecimal), and the content of the note; ``None`` if a later change could go
        unnoticed.

    Raises:
        InvalidModel: they keep changing, or one cannot be read.
    """
    for _ in range(_ATTEMPTS):
        files.wait_for_tick([main])
        first = files.stamp(main)
        listed = paths()
        files.wait_for_tick(listed)
        now, stamps = time.time_ns(), [files.stamp(path) for path in listed]
        try:
            digest = files.sha256_of(*listed)
        except PermissionError as error:
            raise InvalidModel(f"Cannot read {error.filename}: {error.strerror}. Check its permissions") from error
        if stamps[0] != first or [files.stamp(path) for path in listed] != stamps:
            continue
        if not all(files.is_conclusive(stamp, now) for stamp in stamps):
            return digest, None
        pairs = [[str(path), stamp] for path, stamp in zip(listed, stamps, strict=True)]
        return digest, files.sealed({"sha256": digest, "files": pairs})
    raise InvalidModel(f"{main} changed while being read. Open it once it is fully written")
