"""What a cache holds, whether it is sound, and how it is cleared without harm to anybody else's files."""

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
_LEFTOVER = re.compile(r"\.(?P<key>[^.].*?)\.[0-9a-f]{12}(\.damaged)?")


@dataclass(frozen=True, slots=True)
class Item:
    """Something in the cache that isorun surely made: an entry, or the note of a fingerprint.

    Attributes:
        kind, key: what it is.
        path: its folder, or the note's file.
        bytes: its size.
    """

    kind: str
    key: str
    path: Path
    bytes: int


def survey(cache: Cache) -> Iterator[Item]:
    """Everything in a cache that isorun made, sorted. Links are not followed, other files are passed over."""
    for path in _candidates(cache.root):
        kind = path.parent.name
        if kind == _NOTES:
            if _is_note(path):
                yield Item(kind, path.name, path, path.lstat().st_size)
        elif _is_entry(cache, path):
            size = sum(each.lstat().st_size for each in path.rglob("*") if not each.is_dir())
            yield Item(kind, path.name, path, size)


def damaged(
    cache: Cache, *, full: bool = False, progress: Callable[[str, int, int], None] | None = None
) -> dict[Path, str]:
    """Entries that are not as they were made, each with what is wrong. Nothing is changed.

    Args:
        cache: the cache.
        full: hash every file, which finds bit rot; else only files whose stamp has changed.
        progress: told what is checked, how many bytes of it are done, and how many there are.
    """
    found = {}
    items = [item for item in survey(cache) if item.kind != _NOTES]
    done, total = 0, sum(item.bytes for item in items)
    for item in items:

        def advance(count: int) -> None:
            nonlocal done
            done += count
            if progress:
                progress(str(cache.root), done, total)

        try:
            entries.read(item.path, item.kind, item.key, full=full, refresh=False, progress=advance)
        except entries.NOT_AS_MADE as error:
            found[item.path] = f"{type(error).__name__}: {error}"
        except CacheError as error:
            found[item.path] = str(error)
    return found


def clear(cache: Cache) -> dict[Path, str]:
    """Remove everything that isorun made, except what is in use.

    Returns:
        What looks like an entry and was left, with the reason.

    Raises:
        CacheError: the folder holds something, and isorun has never used it as a cache; or it is not trusted.
    """
    if cache.root.is_dir() and any(cache.root.iterdir()) and not (cache.root / MARKER).is_file():
        raise CacheError(
            f"{cache.root} was not cleared: it is not empty and has no {MARKER}, so isorun has not used it as a cache. "
            f"Set ${ENVIRONMENT_VARIABLE} to the folder of the cache."
        )
    trust.check(cache.root)
    left = {}
    for item in list(survey(cache)):
        try:
            trust.check(item.path.parent)
            if item.kind == _NOTES:
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
    """Remove an entry unless somebody makes or uses it; why it was left."""
    lock = cache.lock_file(item.kind, item.key)
    lock.parent.mkdir(mode=files.OWNER_WRITES, exist_ok=True)
    with locks.if_free(lock) as free:
        if not free:
            return "another process is making it"
        try:
            use = locks.InUse(item.path, alone=True)
        except BlockingIOError:
            return "it is in use"
        # Out of the way first: whoever looks for it from now on finds nothing, rather than a part.
        trash = item.path.with_name(f".{item.key}.{os.urandom(6).hex()}")
        item.path.rename(trash)
        del use
        shutil.rmtree(trash)
    return ""


def _candidates(root: Path, *, hidden: bool = False) -> list[Path]:
    """What lies two levels below the root, not through links."""
    kinds = [path for path in root.iterdir() if path.is_dir() and not path.is_symlink()] if root.is_dir() else []
    return sorted(path for kind in kinds for path in kind.iterdir() if path.name.startswith(".") == hidden)


def _is_note(path: Path) -> bool:
    if not _NOTE.fullmatch(path.name) or path.is_symlink():
        return False
    return _reads(lambda: path.name == files.sha256(os.fsencode(files.unsealed(path.read_bytes())["files"][0][0])))


def _is_entry(cache: Cache, path: Path) -> bool:
    """Whether isorun made a folder: its record says so or, where that is damaged, there is a lock of its name."""
    if path.is_symlink() or not path.is_dir():
        return False
    kind, key = path.parent.name, path.name
    return _reads(lambda: entries.record_of(path, kind, key)) or cache.lock_file(kind, key).is_file()


def _reads(read: Callable[[], Any]) -> bool:
    try:
        return bool(read())
    except (*entries.NOT_AS_MADE, IndexError):
        return False
