"""Listing, verifying and clearing a cache, without touching files that isorun did not create."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from isorun.errors import CacheError
from isorun.system.cache import entries, files, locks, trust
from isorun.system.cache.store import ENVIRONMENT_VARIABLE, MARKER, Cache, remove_leftovers

_NOTES = "fingerprints"
_NOTE = re.compile(r"[0-9a-f]{64}")
# Written by the TensorRT backends without a record, so recognized by their names.
_UNRECORDED = {
    "ort-engines": re.compile(r"[0-9a-f]{40}"),
    "timings": re.compile(r"[0-9a-f]{40}\.bin|TensorrtExecutionProvider_\w+\.timing"),
}
_LEFTOVER = re.compile(r"\.(?P<key>[^.].*?)\.[0-9a-f]{12}(\.damaged)?")


@dataclass(frozen=True, slots=True)
class Item:
    """Something in the cache that isorun created: an entry, the note of a fingerprint, or a backend's own cache.

    Attributes:
        kind, key: its identity.
        path: its file or folder.
        bytes: its size.
    """

    kind: str
    key: str
    path: Path
    bytes: int


def survey(cache: Cache) -> Iterator[Item]:
    """Everything in a cache that isorun created, sorted. Links and other files are skipped."""
    for path in _candidates(cache.root):
        kind = path.parent.name
        if path.is_symlink():
            continue
        if kind in _UNRECORDED:
            created = bool(_UNRECORDED[kind].fullmatch(path.name))
        else:
            created = _is_note(path) if kind == _NOTES else _is_entry(cache, path)
        if created:
            held = [path] if path.is_file() else [file for file in path.rglob("*") if not file.is_dir()]
            yield Item(kind, path.name, path, sum(file.lstat().st_size for file in held))


def damaged(
    cache: Cache, *, full: bool = False, progress: Callable[[str, int, int], None] | None = None
) -> dict[Path, str]:
    """The damaged entries, each with the reason. Nothing is changed.

    Args:
        cache: the cache.
        full: hash every file, which finds bit rot; otherwise only files whose stamp has changed.
        progress: called with the cache folder, the number of bytes checked, and the total.
    """
    reasons = {}
    items = [item for item in survey(cache) if item.kind != _NOTES and item.kind not in _UNRECORDED]
    done, total = 0, sum(item.bytes for item in items)
    for item in items:
        try:
            entries.read(item.path, item.kind, item.key, full=full, refresh=False)
        except entries.DAMAGE as error:
            reasons[item.path] = f"{type(error).__name__}: {error}"
        except CacheError as error:
            reasons[item.path] = str(error)
        done += item.bytes
        if progress:
            progress(str(cache.root), done, total)
    return reasons


def clear(cache: Cache) -> dict[Path, str]:
    """Remove everything that isorun created, except what is in use.

    Returns:
        What looks like an entry but was left, with the reason.

    Raises:
        CacheError: the folder is not empty and isorun has never used it as a cache; or it is not trusted.
    """
    if cache.root.is_dir() and any(cache.root.iterdir()) and not (cache.root / MARKER).is_file():
        raise CacheError(
            f"{cache.root} was not cleared: it has no {MARKER}, so isorun has not used it as a cache. Set "
            f"${ENVIRONMENT_VARIABLE} to the folder of the cache."
        )
    trust.check(cache.root)
    left = {}
    for item in list(survey(cache)):
        try:
            trust.check(item.path.parent)
            if item.path.is_file():  # a note or timings, which are never used in place
                item.path.unlink(missing_ok=True)
            elif why := _remove(cache, item):
                left[item.path] = why
        except (OSError, CacheError) as error:
            left[item.path] = str(error)
    for path in _candidates(cache.root, hidden=True):
        key = _LEFTOVER.fullmatch(path.name)
        if key and (lock := cache.lock_file(path.parent.name, key["key"])).exists():
            with locks.if_free(lock) as free:
                if free:
                    remove_leftovers(path.with_name(key["key"]))
    for path in _candidates(cache.root):
        if path not in left and path.is_symlink():
            left[path] = "it is a symbolic link"
        elif path not in left and (path / entries.RECORD).exists():
            left[path] = f"its {entries.RECORD} is not that of an entry of this cache"
    return left


def _remove(cache: Cache, item: Item) -> str:
    """Remove an entry unless it is being made or used; returns why it was left."""
    lock = cache.lock_file(item.kind, item.key)
    lock.parent.mkdir(mode=files.OWNER_WRITES, exist_ok=True)
    with locks.if_free(lock) as free:
        if not free:
            return "another process is making it"
        try:
            use = locks.InUse(item.path, alone=True)
        except BlockingIOError:
            return "it is in use"
        # Renamed first, so that nobody finds a part of it.
        trash = item.path.with_name(f".{item.key}.{os.urandom(6).hex()}")
        item.path.rename(trash)
        del use
        shutil.rmtree(trash)
    return ""


def _candidates(root: Path, *, hidden: bool = False) -> list[Path]:
    """The paths two levels below the root, not through links."""
    kinds = [path for path in root.iterdir() if path.is_dir() and not path.is_symlink()] if root.is_dir() else []
    return sorted(path for kind in kinds for path in kind.iterdir() if path.name.startswith(".") == hidden)


def _is_note(path: Path) -> bool:
    if not _NOTE.fullmatch(path.name):
        return False
    return _succeeds(lambda: path.name == files.sha256(os.fsencode(files.unsealed(path.read_bytes())["files"][0][0])))


def _is_entry(cache: Cache, path: Path) -> bool:
    """Whether isorun created a folder: its record is valid or, if that is damaged, its lock file exists."""
    if not path.is_dir():
        return False
    kind, key = path.parent.name, path.name
    return _succeeds(lambda: entries.record_of(path, kind, key)) or cache.lock_file(kind, key).is_file()


def _succeeds(read: Callable[[], Any]) -> bool:
    try:
        return bool(read())
    except (*entries.DAMAGE, IndexError):
        return False
