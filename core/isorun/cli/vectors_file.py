"""A file of vectors that is written in parts and continued after an interruption."""

from __future__ import annotations

import errno
import json
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from filelock import FileLock, Timeout

from isorun.cli import console
from isorun.errors import IsorunError
from isorun.system import json_files, portable
from isorun.system.cache import write_atomically

_NO_RESERVATION = (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS)  # of file systems that cannot reserve space


class VectorsFile:
    """The vectors so far, in a file beside the output, and how many they are.

    Its space is reserved at the beginning, and rows are written rather than mapped: a full disk is an error, where a
    memory map would end the process by SIGBUS.

    Args:
        output: the ``.npy`` file that the part becomes.
        shape: (lines, dimension).
        key: what the vectors depend on; a part with another key, or a damaged one, is replaced.

    Attributes:
        done: how many lines are saved.
        lines: how many there will be.

    Raises:
        IsorunError: the part cannot be written, such as on a full disk.
    """

    def __init__(self, output: Path, shape: tuple[int, int], key: str) -> None:
        self.lines: int = shape[0]
        self._dimension = shape[1]
        self._output = output
        self._path, self._progress = (output.with_name(f"{output.name}.{end}") for end in ("part", "progress"))
        self._lock = FileLock(output.with_name(f"{output.name}.lock"))
        self._key = key
        self._header = _header(shape)
        self._size = len(self._header) + self.lines * self._dimension * np.float32().itemsize
        with self._writing():
            try:
                self._lock.acquire(timeout=0)
            except Timeout:
                raise IsorunError(
                    f"Another command is writing {output}. Wait for it, or choose another --output"
                ) from None
        self.done: int = self._saved()
        if self._path.exists() and not self._path.is_file():
            self._unlock()
            raise IsorunError(f"{self._path} is in the way: expected a file of vectors so far. Remove it")
        with self._writing():
            flags = os.O_RDWR | os.O_CREAT | portable.NO_LINK
            self._descriptor = os.open(self._path, flags | (0 if self.done else os.O_TRUNC), 0o666)
        try:
            with self._writing():
                if not self.done:
                    self._progress.unlink(missing_ok=True)
                    _reserve(self._descriptor, self._size)
                    portable.write_at(self._descriptor, self._header, 0)
        except BaseException:
            self._close(keep=bool(self.done))
            raise

    def add(self, rows: np.ndarray) -> None:
        """Save more rows. Raises ``IsorunError`` if they are more than ``lines``, or cannot be written."""
        if self.done + len(rows) > self.lines:
            raise IsorunError(f"The text file changed while being read: it has more than {self.lines} lines. Try again")
        content = np.ascontiguousarray(rows, np.float32)
        row_bytes = self._dimension * content.itemsize
        with self._writing():
            portable.write_at(self._descriptor, content.tobytes(), len(self._header) + self.done * row_bytes)
            portable.sync(self._descriptor)
            progress = {"key": self._key, "done": self.done + len(rows)}
            write_atomically(self._progress, json.dumps(progress).encode())
        self.done += len(rows)

    def __enter__(self) -> VectorsFile:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self._close(keep=bool(self.done))
            if self.done:
                console.note(f"{self.done} of {self.lines} lines are saved. Run the same command to continue")
            return
        os.close(self._descriptor)
        with self._writing():
            self._path.replace(self._output)
            self._progress.unlink(missing_ok=True)
        self._unlock()

    def _saved(self) -> int:
        """How many lines an earlier command has saved; 0 if its files are missing, damaged or of other vectors."""
        try:
            saved = json_files.read(self._progress)
            if not isinstance(saved, dict) or saved.get("key") != self._key:
                console.note(f"Starting again: {self._path} is of other texts or settings")
                return 0
            status = self._path.lstat()
            if not stat.S_ISREG(status.st_mode) or status.st_size != self._size:
                return 0
            with self._path.open("rb") as file:
                header = file.read(len(self._header))
        except (FileNotFoundError, IsADirectoryError, ValueError):
            return 0
        except OSError as error:
            if error.errno == errno.EINVAL:  # not a regular file
                return 0
            raise IsorunError(f"Cannot read {self._progress} or {self._path.name} ({error}). Remove both") from error
        done = saved.get("done")
        return done if header == self._header and type(done) is int and 0 < done <= self.lines else 0

    def _close(self, *, keep: bool) -> None:
        os.close(self._descriptor)
        if not keep:
            self._path.unlink(missing_ok=True)
        self._unlock()

    def _unlock(self) -> None:
        Path(self._lock.lock_file).unlink(missing_ok=True)
        self._lock.release()

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise IsorunError(
                f"Cannot write {self._output} ({error.strerror}): its vectors need {self._size:,} bytes in "
                f"{self._path}. Free space, remove what is in the way, or choose another folder with --output"
            ) from error


def _header(shape: tuple[int, int]) -> bytes:
    import io

    buffer = io.BytesIO()
    described = {"descr": np.lib.format.dtype_to_descr(np.dtype(np.float32)), "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(buffer, described)
    return buffer.getvalue()


def _reserve(descriptor: int, size: int) -> None:
    if hasattr(os, "posix_fallocate"):
        try:
            os.posix_fallocate(descriptor, 0, size)
            return
        except OSError as error:
            if error.errno not in _NO_RESERVATION:
                raise
    os.ftruncate(descriptor, size)  # its blocks are allocated, and checked, as rows are written
