"""Locks: one process makes an entry while others wait; entries in use are not cleared."""

from __future__ import annotations

import contextlib
import os
import weakref
from collections.abc import Iterator
from pathlib import Path

from isorun.system import portable
from isorun.system.cache import files

_SILENT_SECONDS = 3.0  # of waiting before it is logged


def lock_file(place: Path) -> Path:
    """The lock file that is held while an entry is made or removed. It is never deleted."""
    return place.parent.parent / "locks" / f"{place.parent.name}-{place.name}.lock"


class InUse:
    """A lock on an entry's folder, held as long as this object exists.

    Args:
        folder: the folder; its inode is locked, so the lock survives a rename.
        alone: whether nobody else may use the folder meanwhile.

    Raises:
        BlockingIOError: somebody holds a conflicting lock.
        OSError: the folder does not exist or is a link.
    """

    def __init__(self, folder: Path, *, alone: bool = False) -> None:
        descriptor = portable.lock_folder(folder, alone=alone)
        if descriptor is not None:
            weakref.finalize(self, os.close, descriptor)


@contextlib.contextmanager
def exclusive(path: Path, what: str) -> Iterator[None]:
    """Hold a lock file; wait for whoever holds it, and log a warning after some seconds."""
    from filelock import FileLock, Timeout

    lock = FileLock(path, mode=files.SHARED & 0o666)
    try:
        held = lock.acquire(timeout=_SILENT_SECONDS)
    except Timeout:
        import logging

        message = "waiting for another process or thread to make %s (`fuser %s` shows its pid)"
        logging.getLogger("isorun.system.cache").warning(message, what, path)
        held = lock.acquire()
    with held:
        yield


@contextlib.contextmanager
def if_free(path: Path) -> Iterator[bool]:
    """Hold a lock file unless somebody else does; yields whether it is held."""
    from filelock import FileLock, Timeout

    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(FileLock(path, mode=files.SHARED & 0o666).acquire(timeout=0))
        except Timeout:
            yield False
        else:
            yield True
