"""The cache of a session or command: entries and fingerprints."""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from isorun.errors import CacheError
from isorun.system import limits
from isorun.system.arguments import check_flag, check_path
from isorun.system.cache import entries, files, fingerprints, locks, maintenance, trust
from isorun.system.cache.entries import Entry
from isorun.system.cache.files import MARKER, SHARED, expanded, size_in_bytes, write_atomically

ENVIRONMENT_VARIABLE = "ISORUN_CACHE_DIR"
VERIFY_VARIABLE = "ISORUN_CACHE_VERIFY"
LIMIT_VARIABLE = "ISORUN_CACHE_LIMIT"
_HOUR = 3600
_MARK = b"This folder is a cache of isorun. `isorun cache --clear` empties it.\n"


class Cache:
    """The cache in a folder. The entries that it has opened are not cleared as long as it exists.

    Args:
        root: the folder; ``None`` for ``$ISORUN_CACHE_DIR`` or the user's cache folder; ``False`` for a private
            temporary folder, which :meth:`release` and the end of the process remove.
        verify: hash every file that is opened, which finds bit rot; ``None`` for whether ``$ISORUN_CACHE_VERIFY`` is
            1. A damaged entry is made again.

    Raises:
        CacheError: ``$ISORUN_CACHE_VERIFY`` is neither 0 nor 1, ``$ISORUN_CACHE_LIMIT`` is not a size, or there is no
            home or temporary folder. The methods raise it if the folder cannot be written to, belongs to another user,
            or is writable by other users.
    """

    def __init__(
        self, root: str | os.PathLike[str] | Literal[False] | None = None, *, verify: bool | None = None
    ) -> None:
        self._remove: Callable[[], object] | None = None
        verify = check_flag(verify, "verify_cache", optional=True)
        if root is not None and root is not False:
            check_path(root, "cache_dir")
        if root is False:
            root = _temporary_folder()
            self._remove = weakref.finalize(self, _remove_in, os.getpid(), root)
        chosen = root or os.environ.get(ENVIRONMENT_VARIABLE) or _user_folder()
        self.root: Path = expanded(chosen).absolute()
        self.verify: bool = _verify_from_environment() if verify is None else verify
        self.limit: int | None = _limit_from_environment()
        self._in_use: dict[Path, locks.InUse] = {}

    def get(self, kind: str, key: str) -> Entry | None:
        """The entry of that kind and key; ``None`` if it is missing or damaged.

        Raises:
            CacheError: it belongs to another user, or other users can write to it.
        """
        return self._open(kind, key, None, full=self.verify)

    def get_or_make(
        self,
        kind: str,
        key: str,
        make: Callable[[Path], dict[str, Any]],
        models: Sequence[str] = (),
        *,
        private: bool = False,
        again: bool = False,
        part: str | None = None,
    ) -> Entry:
        """The entry of that kind and key, made if it is missing or damaged.

        Waits, and logs a warning, while another process makes it. If the cache is then above its limit, entries are
        removed (:func:`isorun.system.cache.maintenance.trim`).

        Args:
            kind: a folder's name, such as ``lowered``.
            key: letters and digits, different for different contents.
            make: writes files to a folder and returns JSON to store with the entry.
            models: the fingerprints of the model that it is made from, for ``isorun cache --remove``.
            private: whether its files are for their owner only (mode 600), whatever the umask. An existing entry that
                others can read is made again.
            again: make it even if it exists, and replace it.
            part: the name of one of several things in one folder, which are made one by one and removed together. The
                JSON is that of the part, and ``make`` may read the files of others, which it must not change.

        Raises:
            CacheError: the folder cannot be written to, is full, belongs to another user, or is writable by others.
        """
        if not again and (entry := self._usable(kind, key, private, part)):
            return entry
        place = self.root / kind / key
        with self._writable(kind), locks.exclusive(locks.lock_file(place), f"the cache entry {kind}/{key}"):
            if not again and (entry := self._usable(kind, key, private, part)):  # made by another process meanwhile
                return entry
            entries.remove_leftovers(place)  # of a maker that died, since this process holds the lock
            self._remove_other_leftovers(kind)
            if part is not None and self._usable(kind, key, private):
                entries.extend(place, kind, key, part, make, models)
            else:
                work = entries.new_folder(place, private=private)
                try:
                    meta = make(work)
                    entries.finish(work, kind, key, meta if part is None else {part: meta}, models)
                    if os.path.lexists(place):
                        place.rename(work.with_name(work.name + ".damaged"))
                    work.rename(place)
                finally:
                    entries.remove_leftovers(place)
            created = self._open(kind, key, part, full=False)
        if created:
            maintenance.trim_after(self.root, self.limit, files.size_of(created.folder))
            return replace(created, found=False)
        raise CacheError(f"{place} was changed by another program right after it was created. Try again")

    def fingerprint(self, paths: Callable[[], list[Path]], main: Path) -> str:
        """SHA-256 over files (hexadecimal), stored until the stamp of one of them changes.

        Args:
            paths: lists the files to hash, ``main`` first. Called only if no valid fingerprint is stored, since it may
                have to read ``main``.
            main: the file under whose path the fingerprint is stored.

        Raises:
            InvalidModel: the files keep changing while they are read.
            CacheError: the stored fingerprint belongs to another user, or other users can write to it.
        """
        kind = "fingerprints"
        note = self.root / kind / fingerprints.note_name(main)
        self._check(kind)
        if not self.verify and (fingerprint := fingerprints.stored(note, main)):
            return fingerprint
        digest, content = fingerprints.take(paths, main)
        if content:
            try:
                self._make_folders(kind)
                write_atomically(note, content, SHARED & 0o666)
            except OSError:
                pass  # a full or read-only cache: hashed again next time
        return digest

    def release(self) -> None:
        """Allow other processes to clear the entries that this one has opened. Removes a temporary folder."""
        self._in_use.clear()
        if self._remove is not None:
            self._remove()

    def _usable(self, kind: str, key: str, private: bool, part: str | None = None) -> Entry | None:
        entry = self._open(kind, key, part, full=self.verify)
        return entry if entry and not (private and entry.folder.stat().st_mode & 0o077) else None

    def _open(self, kind: str, key: str, part: str | None, *, full: bool) -> Entry | None:
        self._check(kind)
        place = self.root / kind / key
        try:
            use = locks.InUse(place)
            entry = entries.read(place, kind, key, full=full)
            if part is not None:
                entry = replace(entry, meta=entry.meta[part])
        except entries.DAMAGE:  # missing, damaged or being cleared: the caller makes it again
            return None
        self._in_use[place] = use
        with contextlib.suppress(OSError):  # a read-only cache
            if time.time() - place.stat().st_mtime > _HOUR:
                os.utime(place)  # when it was last used, to the hour
        return entry

    def _remove_other_leftovers(self, kind: str) -> None:
        """Remove what makers of other entries have left that are dead, since nobody holds their lock."""
        for leftover in (self.root / kind).glob(".*.*"):
            key = leftover.name[1:].partition(".")[0]
            with locks.if_free(locks.lock_file(self.root / kind / key)) as free:
                if free:
                    entries.remove_leftovers(self.root / kind / key)

    def _check(self, *folders: str) -> None:
        for folder in (self.root, *(self.root / name for name in folders)):
            trust.check(folder)

    @contextlib.contextmanager
    def _writable(self, kind: str) -> Iterator[None]:
        try:
            self._make_folders(kind, "locks")
            yield
        except OSError as error:
            what, remedy = "cache folder", f"Choose another with cache_dir= or ${ENVIRONMENT_VARIABLE}."
            if self._remove is not None:
                what, remedy = (
                    "temporary folder of cache_dir=False,",
                    "Free space there, or set TMPDIR to another folder.",
                )
            raise CacheError(
                f"The {what} {self.root} cannot be written to ({error}). {limits.advice(error, remedy)}"
            ) from error

    def _make_folders(self, *names: str) -> None:
        self.root.parent.mkdir(parents=True, exist_ok=True)
        for folder in (self.root, *(self.root / name for name in names)):
            folder.mkdir(mode=SHARED, exist_ok=True)
        self._check(*names)
        if not (self.root / MARKER).exists():
            write_atomically(self.root / MARKER, _MARK, SHARED & 0o666)


def _user_folder() -> Path:
    from platformdirs import user_cache_path

    try:
        return user_cache_path("isorun")
    except RuntimeError as error:  # no home: a user without an entry in the password database
        raise CacheError(
            f"Cannot find the user's cache folder: {error}. Set ${ENVIRONMENT_VARIABLE} or HOME, or pass cache_dir="
        ) from error


def _temporary_folder() -> str:
    try:
        return tempfile.mkdtemp(prefix="isorun-")
    except OSError as error:
        raise CacheError(
            f"Cannot create a temporary folder for cache_dir=False: {error}. Set TMPDIR to a writable folder"
        ) from error


def _remove_in(process: int, folder: str) -> None:
    """Remove a temporary folder, in the process that created it: a forked child has a copy of the finalizer."""
    if os.getpid() == process:
        import shutil

        shutil.rmtree(folder, ignore_errors=True)


def _limit_from_environment() -> int | None:
    value = os.environ.get(LIMIT_VARIABLE)
    try:
        return size_in_bytes(value) if value else None
    except ValueError as error:
        raise CacheError(f"{LIMIT_VARIABLE}: {error}") from error


def _verify_from_environment() -> bool:
    value = os.environ.get(VERIFY_VARIABLE, "0")
    if value not in ("", "0", "1"):
        raise CacheError(f"{VERIFY_VARIABLE} must be 0 or 1, got {value!r}")
    return value == "1"
