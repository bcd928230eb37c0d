"""Errors of a process that has no memory or files left: nothing is wrong with what it called."""

from __future__ import annotations

import errno

_EXHAUSTED = (errno.ENOMEM, errno.EMFILE, errno.ENFILE)


def advice(error: BaseException, otherwise: str) -> str:
    """What to do about an error: raise a limit if it was reached, or else something else."""
    if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno in _EXHAUSTED):
        return "Raise the limits of this process, such as that of `ulimit -n`, or do less at once"
    return otherwise
