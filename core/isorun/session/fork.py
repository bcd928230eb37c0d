"""Sessions in a forked process, which has their memory and none of the threads at work on it."""

from __future__ import annotations

import os
import weakref
from typing import Protocol

REFUSAL = (
    "This session was opened by the process that this one is a fork of, and the threads that it runs on stayed there. "
    "Open a session in this process (a server that forks has a hook for that), or start processes by spawn"
)


class Forked(Protocol):
    """What is told of a fork."""

    def _forked(self) -> None:
        """In the new process: wait for nothing that stayed in the old one."""


_watched: weakref.WeakSet[Forked] = weakref.WeakSet()


def watch(session: Forked) -> None:
    """Tell it of every fork, for as long as it lives."""
    _watched.add(session)


def keep_for_good(value: object) -> None:
    """Have something of the old process never freed in the new one: that would wait for threads that are not there."""
    import ctypes

    ctypes.pythonapi.Py_IncRef(ctypes.py_object(value))


def _tell() -> None:
    for session in list(_watched):
        session._forked()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_tell)
