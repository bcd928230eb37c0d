"""Entries: folders with a record of their identity and files."""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from isorun.errors import CacheError
from isorun.system.cache import files, locks, trust

RECORD = "entry.json"
_TEMPORARY = f".{RECORD}."

DAMAGE = (OSError, ValueError, KeyError, TypeError, AttributeError)
"""The exceptions of :func:`read` for a missing or damaged entry."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A finished entry.

    Attributes:
        folder: the folder of its files, which are read-only.
        meta: JSON that the maker stored with it.
        found: whether it existed already.
    """

    folder: Path
    meta: dict[str, Any]
    found: bool


def new_folder(place: Path, *, private: bool = False) -> Path:
    """A folder to make an entry in, beside its final place, for everyone whom the umask allows or for its owner."""
    work = place.with_name(f".{place.name}.{os.urandom(6).hex()}")
    work.mkdir(mode=files.PRIVATE if private else files.SHARED)
    return work


def remove_leftovers(place: Path) -> None:
    """Remove what interrupted makers and removals have left beside an entry."""
    for leftover in place.parent.glob(f".{place.name}.*"):
        if leftover.is_dir() and not leftover.is_symlink():
            shutil.rmtree(leftover)
        else:
            leftover.unlink()


def finish(work: Path, kind: str, key: str, meta: dict[str, Any], models: Sequence[str] = ()) -> None:
    """Write the record of an entry whose files are complete.

    Args:
        meta: JSON that the maker stores with it.
        models: the fingerprints of the model that it was made from.

    Raises:
        CacheError: the folder holds something that is not a regular file.
    """
    _write(work, {"kind": kind, "key": key, "files": _listed(work, ()), "meta": meta, "models": list(models)})


def extend(
    place: Path, kind: str, key: str, part: str, make: Callable[[Path], dict[str, Any]], models: Sequence[str]
) -> None:
    """Add a part to an entry while its lock is held. Readers find the part once the record has it.

    Args:
        make: writes files to the folder and returns JSON of the part.
        models: the fingerprints of the model that it was made from.

    Raises:
        CacheError: the folder holds something that is not a regular file.
    """
    record = record_of(place, kind, key)
    known = {RECORD, *record["files"]}
    try:
        _remove_others(place, known)  # of a maker that died
        meta = make(place)
        record["files"] |= _listed(place, known)
    except BaseException:
        _remove_others(place, known)
        raise
    record["meta"] |= {part: meta}
    record["models"] = list(dict.fromkeys([*record["models"], *models]))
    _write(place, record)


def _listed(folder: Path, known: Collection[str]) -> dict[str, Any]:
    """The stamps and digests of the files in a folder, except those that are known."""
    mode = stat.S_IMODE(folder.stat().st_mode)
    paths = {}
    for path in sorted(folder.rglob("*")):
        status, name = path.lstat(), path.relative_to(folder).as_posix()
        if stat.S_ISDIR(status.st_mode):
            path.chmod(mode)
            continue
        if name in known or name.startswith(_TEMPORARY):
            continue
        if not stat.S_ISREG(status.st_mode):
            raise CacheError(f"The cache entry {folder} may hold regular files only, got {name}")
        path.chmod(mode & 0o666)  # libraries may have set others
        paths[name] = path
    digests = {name: files.sha256_of(path) for name, path in paths.items()}
    files.wait_for_tick(list(paths.values()))
    return {name: {"stamp": files.stamp(path), "sha256": digests[name]} for name, path in paths.items()}


def _write(folder: Path, record: dict[str, Any]) -> None:
    temporary = folder / f"{_TEMPORARY}{os.urandom(6).hex()}"
    try:
        temporary.write_bytes(files.sealed(record))
        temporary.chmod(stat.S_IMODE(folder.stat().st_mode) & 0o666)
        temporary.replace(folder / RECORD)
    finally:
        temporary.unlink(missing_ok=True)


def _remove_others(folder: Path, known: Collection[str]) -> None:
    for path in sorted(folder.rglob("*"), reverse=True):  # what a folder holds before the folder
        if path.is_dir() and not path.is_symlink():
            with contextlib.suppress(OSError):  # it holds a file of the entry
                path.rmdir()
        elif path.relative_to(folder).as_posix() not in known:
            path.unlink()


def record_of(place: Path, kind: str, key: str) -> dict[str, Any]:
    """The record of an entry. Raises one of :data:`DAMAGE` if it is missing or damaged, or belongs to another entry."""
    record = files.unsealed(place / RECORD)
    if (record["kind"], record["key"]) != (kind, key):
        raise ValueError(f"{RECORD} belongs to {record['kind']}/{record['key']}")
    return record


def read(place: Path, kind: str, key: str, *, full: bool = False, refresh: bool = True) -> Entry:
    """An entry after its files were checked.

    Args:
        full: whether to hash every file, or only those whose stamp has changed.
        refresh: whether to record the new stamps of files that were copied or touched.

    Raises:
        DAMAGE: it is missing or damaged, or is another entry.
        CacheError: it is not trusted.
    """
    trust.check(place)
    trust.check(place / RECORD)
    record = record_of(place, kind, key)
    for folder in {parent for name in record["files"] for parent in PurePosixPath(name).parents[:-1]}:
        trust.check(place / folder)
    changed: dict[str, files.Stamp] = {}
    for name, described in record["files"].items():
        path = place / name
        status = path.lstat()
        if not stat.S_ISREG(status.st_mode):
            raise ValueError(f"{name} is not a regular file")
        trust.check_status(path, status)
        now, stamp = time.time_ns(), files.stamp_of(status)
        if full or stamp != described["stamp"]:
            if stamp[0] != described["stamp"][0] or files.sha256_of(path) != described["sha256"]:
                raise ValueError(f"{name} has changed")
            if stamp != described["stamp"] and files.is_conclusive(stamp, now):
                changed[name] = stamp
    if changed and refresh:
        # Not while another process adds a part. With a read-only cache, hashed again next time.
        with contextlib.suppress(OSError), locks.if_free(locks.lock_file(place)) as free:
            if free:
                record = record_of(place, kind, key)
                for name, stamp in changed.items():
                    record["files"][name]["stamp"] = stamp
                _write(place, record)
    return Entry(place, record["meta"], found=True)
