"""Locks: one process makes an entry while others wait; entries in use are not cleared."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

_PATIENCE = 3.0  # seconds of waiting without a word


class InUse:
    """A lock on an entry's folder, held as long as this object lives.

    Args:
        folder: the folder; its inode is locked, so the lock survives a rename.
        alone: whether nobody else may use the folder meanwhile.

    Raises:
        BlockingIOError: somebody holds a lock that excludes this one.
        OSError: there is no such folder, or it is a link.
    """

    def __init__(self, folder: Path, *, alone: bool = False) -> None:
        self._descriptor = -1
        self._descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            fcntl.flock(self._descriptor, (fcntl.LOCK_EX if alone else fcntl.LOCK_SH) | fcntl.LOCK_NB)
        except BlockingIOError:
            raise
        except OSError:
            if alone:
                raise
            # A file system without locks: nothing can be cleared there, and everything can be read.

    def __del__(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)


@contextlib.contextmanager
def exclusive(path: Path, what: str) -> Iterator[None]:
    """Hold a lock file; wait for whoever holds it, and log so after some seconds.

    Args:
        path: the lock file.
        what: what it is about, for the log.
    """
    from filelock import FileLock, Timeout

    lock = FileLock(path)
    try:
        lock.acquire(timeout=_PATIENCE)
    except Timeout:
        import logging

        logging.getLogger("isorun.system.cache").warning("waiting for %s, which %s is making", what, _holder(path))
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


@contextlib.contextmanager
def if_free(path: Path) -> Iterator[bool]:
    """Hold a lock file unless somebody else does; whether it is held."""
    from filelock import FileLock, Timeout

    lock = FileLock(path)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        yield False
        return
    try:
        yield True
    finally:
        lock.release()


def _holder(path: Path) -> str:
    """Who holds a lock file, by the kernel's list of locks."""
    try:
        inode = str(path.stat().st_ino)
        # 12: FLOCK  ADVISORY  WRITE 4242 fe:01:1234567 0 EOF
        locks = [line.split() for line in Path("/proc/locks").read_text().splitlines()]
        pids = {words[4] for words in locks if words[1:4:2] == ["FLOCK", "WRITE"] and words[5].endswith(f":{inode}")}
    except (OSError, IndexError):
        pids = set()
    if pids == {str(os.getpid())}:
        return "another thread of this process"
    return f"another process (pid {pids.pop()})" if len(pids) == 1 and "0" not in pids else "another process"
