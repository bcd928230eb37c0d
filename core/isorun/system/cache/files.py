"""Files: hashes, sizes, stamps that tell whether a file has changed, sealed JSON, atomic writes."""

from __future__ import annotations

import json
import os
import re
import stat as stat_module
import threading
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from isorun.system import json_files

MARKER = ".isorun-cache"
"""A file in the root of every cache that isorun has used; without it, nothing is cleared."""

SHARED, PRIVATE = 0o755, 0o700
"""The permissions of folders, less the umask: of the cache, and of entries made from confidential models. Files have
the same without execution."""

_CHUNK = 1 << 20
_SECOND = 1_000_000_000
# File times have a resolution of 1 to 10 ms (the kernel's tick). A second change within the same tick leaves the stamp
# as it is, so a stamp is conclusive only after the tick of the last change.
_TICK = 20_000_000

Stamp = list[int]


def size_of(path: Path) -> int:
    """The bytes of a file, or of all files in a folder. What another process removes meanwhile counts nothing."""
    files = [path] if not path.is_dir() else [Path(root, name) for root, _, names in os.walk(path) for name in names]
    size = 0
    for file in files:
        with suppress(FileNotFoundError):
            size += file.lstat().st_size
    return size


def stamp(path: Path) -> Stamp:
    """Size (bytes), modification and change time (nanoseconds) and inode of a file.

    Archives, ``touch`` and ``cp -p`` cannot set the change time.
    """
    return stamp_of(path.stat())


def stamp_of(status: os.stat_result) -> Stamp:
    """The stamp in a stat result."""
    return [status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino]


def is_private(paths: Iterable[Path]) -> bool:
    """Whether only its owner can read one of several files, so that what is made from them must be private, too."""
    return any(not path.stat().st_mode & (stat_module.S_IRGRP | stat_module.S_IROTH) for path in paths)


def wait_for_tick(paths: Iterable[Path]) -> None:
    """Wait until the tick of the last change of any file is over: 20 ms at most."""
    wait = max((path.stat().st_ctime_ns for path in paths), default=0) + _TICK - time.time_ns()
    if 0 < wait <= _TICK:
        time.sleep(wait / _SECOND)


def is_conclusive(taken: Stamp, now: int) -> bool:
    """Whether every later change of a file changes its stamp.

    Not within a tick of its last change, nor if the change time is in whole seconds: such a file system (squashfs, FAT)
    does not store precise change times.

    Args:
        now: when the stamp was taken, nanoseconds since the epoch.
    """
    changed = taken[2]
    return changed % _SECOND != 0 and changed + _TICK <= now


def sha256(content: bytes | memoryview) -> str:
    """The SHA-256 of some bytes (hexadecimal)."""
    import hashlib

    return hashlib.sha256(content).hexdigest()


def sha256_of(*paths: Path) -> str:
    """The SHA-256 of a file, or over several with their sizes (hexadecimal): the same bytes, divided in another way,
    are other files."""
    import hashlib

    digest = hashlib.sha256()
    for path in paths:
        if len(paths) > 1:
            digest.update(path.stat().st_size.to_bytes(8, "little"))
        with path.open("rb") as file:
            while chunk := file.read(_CHUNK):
                digest.update(chunk)
    return digest.hexdigest()


def sealed(content: dict[str, Any]) -> bytes:
    """JSON with a checksum, for :func:`unsealed`."""
    return json.dumps({"sha256": _checksum(content), "content": content}).encode()


def unsealed(path: Path) -> dict[str, Any]:
    """The content of a file with :func:`sealed` JSON.

    Raises:
        OSError: it is missing, is not a regular file, or cannot be read.
        ValueError, KeyError, TypeError: it is damaged.
    """
    read = json_files.read(path)
    content = read["content"]
    if read["sha256"] != _checksum(content) or not isinstance(content, dict):
        raise ValueError("its checksum does not match its content")
    return content


def _checksum(content: object) -> str:
    return sha256(json.dumps(content).encode())


def expanded(path: str | os.PathLike[str]) -> Path:
    """A path with ``~`` replaced by the user's home; a path that begins with an unknown user's name is unchanged."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        return Path(path)


def size_in_bytes(text: str) -> int:
    """The number of bytes in a size such as ``20GB``, ``512MiB`` or ``1000``. Raises ``ValueError`` for anything
    else."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(?:([kmgt])(i?)b?|b)?\s*", text, re.IGNORECASE)
    if match is None:
        raise ValueError(f"expected a size such as 20GB, got {text!r}")
    number, power, binary = match.groups()
    return int(float(number) * (1024 if binary else 1000) ** (" kmgt".index((power or " ").lower())))


def write_atomically(path: Path, content: bytes, mode: int = 0o666) -> None:
    """Write a file so that readers see the old content or the new, never a part.

    Args:
        path: the file.
        content: what to write.
        mode: the file's permissions, less the umask.
    """
    part = path.with_name(f".{path.name}.{os.getpid()}-{threading.get_ident()}")
    try:
        with open(part, "wb", opener=lambda name, flags: os.open(name, flags, mode)) as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except BaseException as error:
        part.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.filename is None:
            error.filename = os.fspath(path)  # the system does not say which disk is full
        raise
