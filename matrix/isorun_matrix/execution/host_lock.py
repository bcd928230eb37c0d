"""One run at a time measures on a host, whoever starts it: a lock file for all users."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path

from isorun.errors import SpecError
from isorun.system import json_files, portable

FOLDER_VARIABLE = "ISORUN_LOCK_DIR"
"""Where the lock file is: ``/tmp``, unless containers on one host have to share another folder."""

_FILE = "isorun-matrix.lock"


@contextmanager
def held(folder: Path, note: Callable[[str], None]) -> Iterator[None]:
    """Hold the lock of this host; wait for the run that holds it.

    Args:
        folder: of the run, for those that wait.
        note: is told whom this waits for.

    Raises:
        SpecError: the lock file cannot be opened.
    """
    path = Path(os.environ.get(FOLDER_VARIABLE) or portable.shared_folder()) / _FILE
    try:
        descriptor = _open(path)
    except OSError as error:
        raise SpecError(
            f"Cannot open the lock {path} ({error.strerror}). Set {FOLDER_VARIABLE} to a writable folder."
        ) from error
    try:
        try:
            portable.lock(descriptor, wait=False)
        except BlockingIOError:
            note(f"Waiting for another run on this machine: {holder(path)}")
            portable.lock(descriptor, wait=True)
        about = {"pid": os.getpid(), "folder": str(folder), "since": f"{datetime.now().astimezone():%H:%M:%S}"}
        os.ftruncate(descriptor, 0)
        portable.write_at(descriptor, json.dumps(about).encode(), 0)
        yield
    finally:
        os.close(descriptor)


def holder(path: Path) -> str:
    """Who holds the lock, in words."""
    with suppress(OSError, ValueError, KeyError, TypeError):
        about = json_files.read(path)
        return f"process {about['pid']}, {about['folder']}, since {about['since']}"
    return f"see `fuser {path}`"


def _open(path: Path) -> int:
    """Open the lock file, or create it for all users. In a sticky folder, the kernel refuses to open the file of
    another user with O_CREAT."""
    try:
        return os.open(path, os.O_RDWR | portable.NO_LINK)
    except FileNotFoundError:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | portable.NO_LINK, 0o666)
        with suppress(PermissionError):  # another user was faster
            path.chmod(0o666)
        return descriptor
