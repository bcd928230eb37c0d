"""Sessions in a forked process, which inherits their memory but none of their threads."""

from __future__ import annotations

REFUSAL = (
    "This session was opened before a fork, and its threads exist in the parent process only. Open a session in this "
    "process (servers that fork have a hook for it), or start processes with spawn."
)


def keep_for_good(value: object) -> None:
    """Never free an object of the parent in this child: its destructor would wait for threads that do not exist."""
    import ctypes

    ctypes.pythonapi.Py_IncRef(ctypes.py_object(value))
