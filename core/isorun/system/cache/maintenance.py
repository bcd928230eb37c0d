"""Listing, verifying and clearing a cache, without touching files that isorun did not create."""

from __future__ import annotations

import functools
import logging
import os
import re
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from isorun.errors import CacheError
from isorun.system.cache import entries, files, fingerprints, locks, stages, trust

_logger = logging.getLogger("isorun")

_LIMIT = 10 * 2**30
_MEASURED_FOR = 60.0  # seconds; other processes add entries too
_room: dict[tuple[Path, int | None], tuple[float, int]] = {}
"""By cache and limit: when its size was measured, and the bytes that may be added before it is measured again."""

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
        bytes: its size.
        models: the fingerprints of the model that it was made from, if recorded.
    """

    kind: str
    key: str
    path: Path
    bytes: int
    models: frozenset[str] = frozenset()


def survey(root: Path) -> Iterator[Item]:
    """Everything in a cache that isorun created, sorted. Links and other files are skipped."""
    for path in _candidates(root):
        kind = path.parent.name
        if path.is_symlink():
            continue
        if kind in _UNRECORDED:
            created = bool(_UNRECORDED[kind].fullmatch(path.name))
        else:
            created = _is_note(path) if kind == _NOTES else _is_entry(path)
        if created:
            yield Item(kind, path.name, path, files.size_of(path), _models_of(path))


def damaged(
    root: Path, *, full: bool = False, progress: Callable[[str, int, int], None] | None = None
) -> dict[Path, Exception]:
    """The damaged entries, and the folders and entries that are not trusted, each with the reason. Nothing is changed.

    Args:
        full: hash every file, which finds bit rot; otherwise only files whose stamp has changed.
        progress: called with the cache folder, the number of bytes checked, and the total.
    """
    reasons: dict[Path, Exception] = {}
    items = list(survey(root))
    done, total = 0, sum(item.bytes for item in items)
    for folder in {root / "locks", *(item.path.parent for item in items)}:
        try:
            trust.check(folder)
        except CacheError as error:
            reasons[folder] = error
    for item in items:
        try:
            if item.kind == _NOTES or item.kind in _UNRECORDED:
                trust.check(item.path)
            else:
                entries.read(item.path, item.kind, item.key, full=full, refresh=False)
        except (*entries.DAMAGE, CacheError) as error:
            reasons[item.path] = error
        done += item.bytes
        if progress:
            progress(str(root), done, total)
    return reasons


def check_used(root: Path) -> None:
    """Raise ``CacheError`` for a folder with files that isorun has never used as a cache: nothing is removed from
    it."""
    if root.is_dir() and any(root.iterdir()) and not (root / files.MARKER).is_file():
        raise CacheError(
            f"Nothing was removed from {root}: it has no {files.MARKER}, so isorun has not used it as a cache. Set "
            f"$ISORUN_CACHE_DIR to the folder of the cache."
        )


def clear(root: Path) -> dict[Path, str]:
    """Remove everything that isorun created, except what is in use. Returns what was left, with the reason.

    Raises:
        CacheError: the folder is not empty and isorun has never used it as a cache; or it is not trusted.
    """
    check_used(root)
    trust.check(root)
    left = {}
    for item in list(survey(root)):
        if why := _discard(item):
            left[item.path] = why
    for path in _candidates(root, hidden=True):
        key = _LEFTOVER.fullmatch(path.name)
        if key and (lock := locks.lock_file(path.with_name(key["key"]))).exists():
            with locks.if_free(lock) as free:
                if free:
                    entries.remove_leftovers(path.with_name(key["key"]))
    for path in _candidates(root):
        if path not in left and path.is_symlink():
            left[path] = "it is a symbolic link"
        elif path not in left and (path / entries.RECORD).exists():
            left[path] = f"its {entries.RECORD} is not that of an entry of this cache"
    return left


def trim_after(root: Path, limit: int | None, added: int) -> None:
    """:func:`trim` after an entry of so many bytes was added, unless there is room by the last measurement: it reads
    the whole cache."""
    measured, room = _room.get((root, limit), (0.0, 0))
    if room > added and time.monotonic() - measured < _MEASURED_FOR:
        _room[root, limit] = measured, room - added
    else:
        trim(root, limit)


def trim(root: Path, limit: int | None = None) -> tuple[list[Item], dict[Path, str]]:
    """Remove entries until the cache is within a limit: first those that this isorun cannot use, then those that were
    not used for the longest time.

    Args:
        limit: in bytes; ``None`` for 10 GiB or a tenth of the disk, the smaller. Entries in use are left, so the cache
            may stay above it.

    Returns:
        What was removed, and what was left above the limit, with the reason.
    """
    allowed = _default_limit(root) if limit is None else limit
    if (size := files.size_of(root)) <= allowed:
        _room[root, limit] = time.monotonic(), (allowed - size) // 2  # others may use the other half
        return [], {}
    _room.pop((root, limit), None)
    items = list(survey(root))
    total, removed, left = sum(item.bytes for item in items), [], {}
    for item in sorted(items, key=_usefulness):
        if total <= allowed:
            break
        if item.kind == _NOTES:
            continue
        if why := _discard(item):
            left[item.path] = why
        else:
            total -= item.bytes
            removed.append(item)
    if removed and limit is None:
        _tell_limit(root, allowed)
    if removed:
        _logger.info("removed %d cache entries to stay within %d bytes", len(removed), allowed)
    return removed, left if total > allowed else {}


def _default_limit(root: Path) -> int:
    return min(_LIMIT, shutil.disk_usage(root).total // 10)


@functools.cache
def _tell_limit(root: Path, limit: int) -> None:
    """Log once that there is a limit, which the user did not set."""
    _logger.warning(
        "the cache %s is limited to %.1f GiB (at most a tenth of the disk): the least recently used entries are "
        "removed. Set ISORUN_CACHE_LIMIT to another size, such as 50GB",
        root,
        limit / 2**30,
    )


def _usefulness(item: Item) -> tuple[bool, int]:
    """What decides which of two items is kept."""
    try:
        return not stages.is_outdated(item.key), item.path.stat().st_mtime_ns
    except FileNotFoundError:  # removed by another process
        return False, 0


def remove(
    root: Path, fingerprint: str, folder: Path | None = None, beside: Iterable[Path] = ()
) -> tuple[list[Item], dict[Path, str]]:
    """Remove everything that was made from a model. Returns what was removed, and what was left, with the reason.

    Args:
        fingerprint: SHA-256 of the model (``provenance.fingerprint``).
        folder: the entry with the model itself, if it was built from a checkpoint.
        beside: the model's other files, whose fingerprints are removed too.
    """
    items = list(survey(root))
    # Its fingerprints with other outputs.
    known = frozenset({fingerprint}).union(*(item.models for item in items if fingerprint in item.models))
    paths = {folder, *(root / _NOTES / fingerprints.note_name(path) for path in beside)}
    removed, left = [], {}
    for item in items:
        if known.isdisjoint(item.models) and item.path not in paths:
            continue
        if why := _discard(item):
            left[item.path] = why
        else:
            removed.append(item)
    return removed, left


def _discard(item: Item) -> str:
    """Remove one item unless it is being made or used; returns why it was left."""
    try:
        trust.check(item.path.parent)
        if item.path.is_file():  # a note or timings, which are never used in place
            item.path.unlink(missing_ok=True)
            return ""
        return _remove(item)
    except (OSError, CacheError) as error:
        return str(error)


def _remove(item: Item) -> str:
    """Remove an entry unless it is being made or used; returns why it was left."""
    lock = locks.lock_file(item.path)
    lock.parent.mkdir(mode=files.SHARED, exist_ok=True)
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


def _models_of(path: Path) -> frozenset[str]:
    """The fingerprints in an entry's record; of a note of a fingerprint, that one."""
    try:
        if path.is_file():
            return frozenset({str(files.unsealed(path)["sha256"])})
        return frozenset(map(str, files.unsealed(path / entries.RECORD).get("models", ())))
    except entries.DAMAGE:
        return frozenset()


def _is_note(path: Path) -> bool:
    if not _NOTE.fullmatch(path.name):
        return False
    return _succeeds(lambda: path.name == fingerprints.note_name(files.unsealed(path)["files"][0][0]))


def _is_entry(path: Path) -> bool:
    """Whether isorun created a folder: its record is valid or, if that is damaged, its lock file exists."""
    if not path.is_dir():
        return False
    kind, key = path.parent.name, path.name
    return _succeeds(lambda: entries.record_of(path, kind, key)) or locks.lock_file(path).is_file()


def _succeeds(read: Callable[[], Any]) -> bool:
    try:
        return bool(read())
    except (*entries.DAMAGE, IndexError):
        return False
