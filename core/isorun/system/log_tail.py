"""The end of what a process printed, for a message."""

from __future__ import annotations

from pathlib import Path

BYTES = 16384
_LINES = 25
_C_STACK = ('  Binary file "', "Current thread's C stack trace")


def end_of(text: str) -> str:
    """The last lines of a log.

    From Python 3.14 on, a crash leaves the addresses of C's frames below those of Python's: they are left out here, for
    it is Python's that say where it was.
    """
    lines = [line for line in text.splitlines() if not line.startswith(_C_STACK)]
    return "\n".join(lines[-_LINES:])


def end_of_file(path: Path) -> str:
    """The same of a file, however long it is."""
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - BYTES))
        return end_of(file.read().decode(errors="replace"))
