"""Text files of users: UTF-8, with one text or record on each line."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from isorun.errors import InvalidArgument


def lines(path: Path) -> Iterator[str]:
    """The lines of a file without their ends, blank ones included.

    A byte order mark, which editors on Windows write, is not part of the first line. Lines end where editors end them:
    unlike with ``str.splitlines``, a separator within a text, such as U+2028 or a form feed, ends none.

    Raises:
        InvalidArgument: the file is not UTF-8.
    """
    try:
        with path.open(encoding="utf-8-sig") as file:
            for line in file:
                yield line.removesuffix("\n")
    except UnicodeDecodeError as error:
        raise InvalidArgument(f"{path} is not UTF-8 text: {error}") from error


def texts(path: Path) -> list[str]:
    """The lines of a file that are not blank. Raises ``InvalidArgument`` if there is none, or the file is not UTF-8."""
    read = [line for line in lines(path) if line.strip()]
    if not read:
        raise InvalidArgument(f"{path} has no text. Put one text on each line")
    return read
