"""The last lines of a log, for error messages."""

from __future__ import annotations

BYTES = 16384
_LINES = 25
_C_STACK = ('  Binary file "', "Current thread's C stack trace")


def end_of(text: str) -> str:
    """The last lines of a log.

    Without the C stack trace that Python 3.14 prints below the Python traceback of a crash.
    """
    lines = [line for line in text.splitlines() if not line.startswith(_C_STACK)]
    return "\n".join(lines[-_LINES:])
