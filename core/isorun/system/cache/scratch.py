"""Scratch folders beside what is written, removed by a later process if the one that made them was killed."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from isorun.system import portable
from isorun.system.cache import locks


@contextmanager
def scratch_folder(target: Path) -> Iterator[Path]:
    """A folder of this user alone beside a file that is being made. Removes those of processes that have died.

    A living process holds a lock on its folder, so that folders of others that work on the same file are kept.

    Args:
        target: the file; its folder must exist.
    """
    prefix = f".{target.name}.isorun-"
    _remove_abandoned(target.parent, prefix)
    folder, use = _create(target.parent, prefix)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        del use


def _create(parent: Path, prefix: str) -> tuple[Path, locks.InUse]:
    while True:
        folder = Path(tempfile.mkdtemp(dir=parent, prefix=prefix))
        try:
            return folder, locks.InUse(folder)
        except (BlockingIOError, FileNotFoundError):
            continue  # another process took it for abandoned before it was locked


def _remove_abandoned(parent: Path, prefix: str) -> None:
    for path in list(parent.iterdir()):
        if not path.name.startswith(prefix):
            continue
        try:
            if portable.HAS_OWNERS and path.lstat().st_uid != os.geteuid():
                continue
            use = locks.InUse(path, alone=True)
        except OSError:  # in use, not a folder, removed meanwhile, or no locks on this file system
            continue
        shutil.rmtree(path, ignore_errors=True)
        del use
