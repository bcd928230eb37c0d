"""Sessions in a forked process, which inherits their memory but none of their threads."""

from __future__ import annotations

import weakref
from typing import Protocol

from isorun.system import portable

REFUSAL = (
    "This session was opened before a fork, and its threads exist in the parent process only. Open a session in this "
    "process (servers that fork have a hook for it), or start processes with spawn."
)


class Forked(Protocol):
    """An object that is notified of a fork."""

    def _forked(self) -> None:
        """In the child: do not wait for anything that exists in the parent only."""


_watched: weakref.WeakSet[Forked] = weakref.WeakSet()


def watch(session: Forked) -> None:
    """Notify a session of every fork while it is alive."""
    _watched.add(session)


def keep_for_good(value: object) -> None:
    """Never free an object of the parent in this child: its destructor would wait for threads that do not exist."""
    import ctypes

    ctypes.pythonapi.Py_IncRef(ctypes.py_object(value))


def _notify() -> None:
    for session in list(_watched):
        session._forked()


portable.after_fork_in_child(_notify)
