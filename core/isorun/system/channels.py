"""Messages between a process and its child: lines over the child's standard input and output, as on every system."""

from __future__ import annotations

import os
import queue
import sys
import threading
import weakref
from typing import BinaryIO


class Channel:
    """The parent's side. Its descriptors are closed with this object."""

    def __init__(self, reader: int, writer: int) -> None:
        self._lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._writer = writer
        self.close = weakref.finalize(self, os.close, writer)
        threading.Thread(target=_read, args=(reader, self._lines), daemon=True, name="isorun-channel").start()

    def send(self, message: str) -> None:
        """Send a line. Raises ``OSError`` if the child has ended."""
        os.write(self._writer, f"{message}\n".encode())

    def receive(self, timeout: float) -> str:
        """The next line; empty once the child has closed its side. Raises ``TimeoutError`` if there was none within so
        many seconds."""
        try:
            return self._lines.get(timeout=timeout).decode().rstrip("\n")
        except queue.Empty:
            raise TimeoutError from None


def _read(descriptor: int, lines: queue.SimpleQueue[bytes]) -> None:
    with os.fdopen(descriptor, "rb") as reader:
        for line in reader:
            lines.put(line)
    lines.put(b"")


class Parent:
    """The child's side. What the process prints from now on goes to standard error, and it has nothing to read."""

    def __init__(self) -> None:
        self._reader: BinaryIO = os.fdopen(os.dup(0), "rb")
        self._writer = os.dup(1)
        sys.stdout.flush()
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.close(nothing)
        os.dup2(2, 1)

    def send(self, message: str) -> None:
        """Send a line."""
        os.write(self._writer, f"{message}\n".encode())

    def receive(self) -> str:
        """The next line; empty once the parent has ended."""
        return self._reader.readline().decode().rstrip("\n")
