"""Errors of a process that reached a limit: nothing is wrong with what it called."""

from __future__ import annotations

import errno

_ADVICE: dict[int | None, str] = {
    errno.ENOMEM: "Free memory, raise the limit of this process (`ulimit -v`), or do less at once",
    errno.EMFILE: "Raise the limit of open files of this process (`ulimit -n`), or do less at once",
    errno.ENFILE: "Close programs, or raise the system's limit of open files",
    errno.EFBIG: "Raise the limit of the size of files of this process (`ulimit -f`)",  # of shared memory, too
}


def advice(error: BaseException, otherwise: str) -> str:
    """What to do about an error: about the limit that was reached, or else something else."""
    if isinstance(error, MemoryError):
        return _ADVICE[errno.ENOMEM]
    return _ADVICE.get(error.errno, otherwise) if isinstance(error, OSError) else otherwise
