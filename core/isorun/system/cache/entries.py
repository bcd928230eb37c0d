"""Entries: folders with a record of what they are and what is in them."""

from __future__ import annotations

import contextlib
import os
import stat
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from isorun.errors import CacheError
from isorun.system.cache import files, trust

RECORD = "entry.json"

NOT_AS_MADE = (OSError, ValueError, KeyError, TypeError, AttributeError)
"""What :func:`read` raises where an entry is missing or damaged."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A finished entry.

    Attributes:
        folder: where its files are. Read them, never write to them.
        meta: what its maker wanted to remember: plain JSON.
        found: whether it was there already.
    """

    folder: Path
    meta: dict[str, Any]
    found: bool


def new_folder(place: Path) -> Path:
    """A folder to make an entry in, beside its place. Others may read it as the umask says."""
    work = place.with_name(f".{place.name}.{os.urandom(6).hex()}")
    work.mkdir(mode=files.OWNER_WRITES)
    return work


def finish(work: Path, kind: str, key: str, meta: dict[str, Any]) -> None:
    """Write the record of an entry whose files are made.

    Raises:
        CacheError: the maker left something that is not a regular file.
    """
    mode = stat.S_IMODE(work.stat().st_mode) & 0o644
    paths = sorted(work.iterdir())
    for path in paths:
        if not stat.S_ISREG(path.lstat().st_mode):
            raise CacheError(f"The entry {kind}/{key} must hold regular files only, got {path.name}")
        path.chmod(mode)  # whatever made it: temporary files are 0600, and a umask may let groups write
    digests = {path.name: files.sha256_of(path) for path in paths}
    files.wait_for_tick(paths)
    listed = {path.name: {"stamp": files.stamp(path), "sha256": digests[path.name]} for path in paths}
    record = work / RECORD
    record.write_bytes(files.sealed({"kind": kind, "key": key, "files": listed, "meta": meta}))
    record.chmod(mode)


def record_of(place: Path, kind: str, key: str) -> dict[str, Any]:
    """The record of an entry.

    Raises:
        NOT_AS_MADE: there is none, it is damaged, or it is another entry's.
    """
    record = files.unsealed((place / RECORD).read_bytes())
    if (record["kind"], record["key"]) != (kind, key):
        raise ValueError(f"{RECORD} is that of {record['kind']}/{record['key']}")
    return record


def read(
    place: Path,
    kind: str,
    key: str,
    *,
    full: bool = False,
    refresh: bool = True,
    progress: Callable[[int], None] | None = None,
) -> Entry:
    """An entry, every file of it as it was made.

    Args:
        place: its folder.
        kind, key: what it has to be.
        full: whether to hash every file, or only those whose stamp differs.
        refresh: whether to record the new stamps of files that were copied or touched.
        progress: told how many bytes of each file were looked at.

    Raises:
        NOT_AS_MADE: it is missing or damaged, or is another entry.
        CacheError: it is not trusted.
    """
    trust.check(place)
    trust.check(place / RECORD)
    record = record_of(place, kind, key)
    changed = False
    for name, described in record["files"].items():
        path = place / name
        status = path.lstat()
        if not stat.S_ISREG(status.st_mode):
            raise ValueError(f"{name} is not a regular file")
        trust.check_status(path, status)
        now, stamp = time.time_ns(), files.stamp_of(status)
        if full or stamp != described["stamp"]:
            if stamp[0] != described["stamp"][0] or files.sha256_of(path) != described["sha256"]:
                raise ValueError(f"{name} is not as it was written")
            if stamp != described["stamp"] and files.is_conclusive(stamp, now):
                described["stamp"], changed = stamp, True
        if progress:
            progress(status.st_size)
    if changed and refresh:
        with contextlib.suppress(OSError):  # hashed again next time: a cache may be read-only
            mode = stat.S_IMODE((place / RECORD).stat().st_mode)
            files.write_atomically(place / RECORD, files.sealed(record), mode)
    return Entry(place, record["meta"], found=True)
