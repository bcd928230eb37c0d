"""JSON files that may be damaged or hostile: one reader, with limits of size, number of values and depth."""

from __future__ import annotations

import errno
import json
import re
import stat
from pathlib import Path
from typing import Any, NamedTuple

_BRACKET = re.compile(rb'"(?:[^"\\]|\\.)*"|[\[{\]}]', re.DOTALL)


class Limits(NamedTuple):
    """What a kind of file may have.

    Attributes:
        size: of the file, in bytes.
        values: of values, counted by commas and opening brackets, those in strings included. Parsed, a value has up to
            232 bytes.
        depth: of arrays and objects in one another; ``None`` for as many as Python can parse.
        unique: whether an object with a key twice is an error. In others, the last value counts, as where the files of
            models are defined.
    """

    size: int = 256 << 20
    values: int | None = None
    depth: int | None = None
    unique: bool = True


class DuplicateKey(ValueError):
    """An object of a JSON text has a key twice."""


ANY = Limits()
"""For files that isorun wrote."""


def parse(text: str | bytes, limits: Limits = ANY) -> Any:
    """The JSON in a text.

    Raises:
        DuplicateKey: an object has a key twice.
        ValueError: it is not JSON, is not UTF-8, or exceeds a limit.
    """
    if limits.values is not None or limits.depth is not None:
        _check(text.encode(errors="surrogatepass") if isinstance(text, str) else text, limits)
    try:
        hook = _unique if limits.unique else None
        return json.loads(text if isinstance(text, str) else text.decode(), object_pairs_hook=hook)
    except RecursionError:
        raise ValueError("its JSON is nested too deeply") from None


def read(path: Path, limits: Limits = ANY) -> Any:
    """The JSON in a file.

    Raises:
        OSError: the file is missing, is not a regular file, or cannot be read.
        ValueError: it is not JSON, is not UTF-8, or exceeds a limit.
    """
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):  # reading a pipe would wait for ever
        raise OSError(errno.EINVAL, "Not a regular file", str(path))
    if status.st_size > limits.size:
        raise ValueError(f"expected JSON of at most {limits.size} bytes, got {status.st_size}")
    return parse(path.read_bytes(), limits)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        keys = [key for key, _ in pairs]
        repeated = next(key for key in keys if keys.count(key) > 1)
        raise DuplicateKey(f"duplicate key {repeated!r}")
    return members


def _check(content: bytes, limits: Limits) -> None:
    opened = content.count(b"[") + content.count(b"{")
    if limits.values is not None and (values := opened + content.count(b",")) > limits.values:
        raise ValueError(f"expected JSON of at most {limits.values} values, got up to {values}")
    if limits.depth is None or opened <= limits.depth:
        return
    depth = 0
    for match in _BRACKET.finditer(content):
        token = match[0]
        depth += (token in b"[{") - (token in b"]}") if len(token) == 1 else 0
        if depth > limits.depth:
            raise ValueError(f"its JSON is nested more than {limits.depth} levels deep")
