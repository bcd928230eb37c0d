"""Content-addressed artefacts on disk: lowered models, models built from checkpoints, downloads.

An entry is a folder named by a key, with an ``entry.json`` that lists its files and holds what its maker
wants to remember. Entries are made in a folder beside their place and renamed into it under a lock, so
that a process that dies leaves nothing half made and two that want the same entry make it once. Every file
is looked at when an entry is opened: its size, modification time and inode tell whether it is untouched;
where they differ its SHA-256 decides. A damaged entry is made anew.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from isorun.errors import CacheError

ENVIRONMENT_VARIABLE = "ISORUN_CACHE_DIR"
_RECORD = "entry.json"
_CHUNK = 1 << 20


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


class Cache:
    """The cache under one folder: ``$ISORUN_CACHE_DIR`` or the user's cache folder unless given.

    Raises:
        CacheError: the folder cannot be made or written to.
    """

    def __init__(self, root: str | os.PathLike[str] | None = None) -> None:
        chosen = root or os.environ.get(ENVIRONMENT_VARIABLE) or _user_folder()
        self.root = expanded(chosen).absolute()

    def get(self, kind: str, key: str) -> Entry | None:
        """The entry of that kind and key, if it is there and undamaged."""
        return self._open(self._place(kind, key))

    def get_or_make(self, kind: str, key: str, make: Callable[[Path], dict[str, Any]]) -> Entry:
        """The entry of that kind and key, made where it is missing or damaged.

        Args:
            kind: a folder's name, such as ``lowered``.
            key: letters and digits, different for different contents.
            make: fills the folder that it is given and returns what to remember.

        Raises:
            CacheError: the folder cannot be written to, or is full.
        """
        place = self._place(kind, key)
        if entry := self._open(place):
            return entry

        import tempfile

        with self._lock(place), self._writable(place.parent):
            if entry := self._open(place):  # made by another process meanwhile
                return entry
            _clear(place)  # what a maker left that died: the lock says that none is alive
            work = Path(tempfile.mkdtemp(prefix=f".{key}.", dir=place.parent))
            try:
                meta = make(work)
                files = {path.name: _describe(path) for path in sorted(work.iterdir())}
                record = {"sha256": _sha256_of_record(files, meta), "files": files, "meta": meta}
                (work / _RECORD).write_text(json.dumps(record))
                if place.exists():
                    place.rename(work.with_name(work.name + ".damaged"))
                work.rename(place)
            finally:
                _clear(place)
        return Entry(place, meta, found=False)

    def fingerprint(self, paths: Callable[[], list[Path]], main: Path) -> str:
        """SHA-256 over files, remembered by their paths, sizes, modification times and inodes.

        Args:
            paths: lists the files to hash, ``main`` first. Asked only where nothing is remembered, since
                it may have to read ``main`` to know.
            main: the file to remember the answer by.
        """
        note = self._place("fingerprints", sha256(os.fsencode(main)))
        try:
            known = json.loads(note.read_text())
            if all(_stamp(Path(path)) == stamp for path, stamp in known["files"]):
                return str(known["sha256"])
        except (OSError, ValueError, KeyError, TypeError):
            pass  # nothing remembered, or nothing that still holds: hash again
        files = paths()
        stamps = [[str(path), _stamp(path)] for path in files]  # taken first: a change meanwhile is noticed later
        digest = _sha256(*files)
        with contextlib.suppress(OSError):  # it is hashed again then: a cache that is full or read-only serves
            note.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(note, json.dumps({"sha256": digest, "files": stamps}).encode())
        return digest

    def _place(self, kind: str, key: str) -> Path:
        return self.root / kind / key

    @contextlib.contextmanager
    def _lock(self, place: Path) -> Iterator[None]:
        from filelock import FileLock

        locks = self.root / "locks"
        with self._writable(place.parent), self._writable(locks):
            lock = FileLock(locks / f"{place.parent.name}-{place.name}.lock")
            lock.acquire()
        try:
            yield
        finally:
            lock.release()

    @contextlib.contextmanager
    def _writable(self, folder: Path) -> Iterator[None]:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            yield
        except OSError as error:
            raise CacheError(
                f"The cache folder {self.root} cannot be written to ({error}). "
                f"Choose another with cache_dir= or ${ENVIRONMENT_VARIABLE}."
            ) from error

    def damaged(self) -> dict[Path, str]:
        """Entries that are not as they were made, each with what is wrong. Whoever wants one makes it anew."""
        found = {}
        for record in sorted(self.root.glob(f"*/[!.]*/{_RECORD}")):
            try:
                _read(record.parent)
            except _NOT_AS_MADE as error:
                found[record.parent] = f"{type(error).__name__}: {error}"
        return found

    def _open(self, place: Path) -> Entry | None:
        try:
            return _read(place)
        except _NOT_AS_MADE:  # missing or damaged: the same to the caller, who makes it anew
            return None


_NOT_AS_MADE = (OSError, ValueError, KeyError, TypeError)


def _read(place: Path) -> Entry:
    """An entry, every file of it as it was made; one of :data:`_NOT_AS_MADE` where it is not."""
    record = json.loads((place / _RECORD).read_text())
    files, meta = record["files"], record["meta"]
    if record["sha256"] != _sha256_of_record(files, meta):
        raise ValueError(f"{_RECORD} is not as it was written")
    for name, described in files.items():
        if not _untouched(place / name, described):
            raise ValueError(f"{name} is not as it was written")
    return Entry(place, meta, found=True)


def _user_folder() -> Path:
    from platformdirs import user_cache_path

    return user_cache_path("isorun")


def expanded(path: str | os.PathLike[str]) -> Path:
    """A path with the user's home in the place of ``~``; one that begins with no user's name stays as it is."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        return Path(path)


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file so that whoever reads it finds the old content or the new, never a part."""
    part = path.with_name(f".{path.name}.{os.getpid()}-{threading.get_ident()}")
    try:
        with part.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def _clear(place: Path) -> None:
    """Remove whatever is beside an entry's place and belongs to it."""
    import shutil

    for leftover in place.parent.glob(f".{place.name}.*"):
        if leftover.is_dir() and not leftover.is_symlink():
            shutil.rmtree(leftover)
        else:
            leftover.unlink()


def _sha256_of_record(files: object, meta: object) -> str:
    return sha256(json.dumps([files, meta]).encode())


def _describe(path: Path) -> dict[str, Any]:
    return {"stamp": _stamp(path), "sha256": _sha256(path)}


def _untouched(path: Path, described: dict[str, Any]) -> bool:
    stamp = _stamp(path)
    if stamp == described["stamp"]:
        return True
    same_size: bool = stamp[0] == described["stamp"][0]
    return same_size and _sha256(path) == described["sha256"]


def _stamp(path: Path) -> list[int]:
    status = path.stat()
    return [status.st_size, status.st_mtime_ns, status.st_ino]


def sha256(content: bytes) -> str:
    """The SHA-256 of some bytes (hexadecimal)."""
    import hashlib

    return hashlib.sha256(content).hexdigest()


def _sha256(*paths: Path) -> str:
    import hashlib

    digest = hashlib.sha256()
    for path in paths:
        with path.open("rb") as file:
            while chunk := file.read(_CHUNK):
                digest.update(chunk)
    return digest.hexdigest()
