"""Segments of shared memory without a name: when the last process that maps one is gone, so is it.

The session's side makes a segment and sends its open file to the worker; both map it. What a run gives lies in a
segment, and the arrays handed out are views of it: a :class:`Lease` brings the segment back when the last of them is
collected.
"""

from __future__ import annotations

import itertools
import mmap
import os
from typing import Any

import numpy as np

_LEAST = 1 << 16
_ALIGNMENT = 64  # a cache line, and the widest vector of any processor so far
_MOST_LENT = 8  # segments in the caller's hands at once


def aligned(size: int) -> int:
    """The next place at which an array may begin."""
    return -(-size // _ALIGNMENT) * _ALIGNMENT


class Segment:
    """Memory that two processes share.

    Args:
        number: what both call it.
        file: its open file; mapped, and closed with that.
        size: in bytes.
    """

    def __init__(self, number: int, file: int, size: int) -> None:
        try:
            self.number = number
            self.size = size
            self.memory = mmap.mmap(file, size)
        finally:
            os.close(file)

    @classmethod
    def at_least(cls, number: int, size: int) -> tuple[Segment, int]:
        """A new segment, and its open file for the other process, which the caller closes.

        Only what is written to takes memory, so the size is rounded up generously: it seldom has to grow.
        """
        size = max(_LEAST, 1 << (size - 1).bit_length())
        file = os.memfd_create("isorun", os.MFD_CLOEXEC)
        try:
            os.ftruncate(file, size)
            return cls(number, os.dup(file), size), file
        except BaseException:
            os.close(file)
            raise

    def view(self, dtype: np.dtype[Any], shape: tuple[int, ...], at: int) -> np.ndarray:
        """An array in the segment, which stays mapped as long as there is one."""
        return np.ndarray(shape, dtype, self.memory, at)


class Pool:
    """The segments of a connection that are free, and those that are lent. Any thread may use it."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._free: list[Segment] = []
        self._lent: set[int] = set()
        self._forgotten: list[int] = []
        self._closed = False

    def new(self, size: int) -> tuple[Segment, int]:
        """A new segment of at least that size, and its open file: see :meth:`Segment.at_least`."""
        return Segment.at_least(next(self._numbers), size)

    def take(self) -> Segment | None:
        """A segment for results that is free; ``None`` where there is none."""
        try:
            return self._free.pop()
        except IndexError:
            return None

    def free(self, segment: Segment) -> None:
        """Let a segment be used for other results."""
        if not self._closed:
            self._free.append(segment)

    def lend(self, segment: Segment, size: int) -> np.ndarray | None:
        """The first bytes of a segment, for the caller to keep as long as it likes.

        Returns:
            An array of bytes. The segment is free again when no array holds it; ``None`` where so many are lent
            that the caller seems to collect results, which is to cost it no open files and mappings.
        """
        if len(self._lent) >= _MOST_LENT:
            return None
        self._lent.add(segment.number)
        return np.asarray(Lease(self, segment, size))

    def returned(self, segment: Segment) -> None:
        """A segment that was lent is held by no array any more."""
        if segment.number in self._lent:
            self._lent.discard(segment.number)
            self.free(segment)
        else:
            self.forget(segment)

    def fork(self) -> None:
        """What is lent stays with both processes from now on: one cannot know when the other lets go of it."""
        self._lent.clear()

    def close(self) -> None:
        """Let go of every segment but those in the caller's hands."""
        self._closed = True
        self._free.clear()

    def forget(self, segment: Segment) -> None:
        """Have the worker forget a segment, when it is next told of one."""
        self._forgotten.append(segment.number)

    def forgotten(self) -> list[int]:
        """The numbers of the segments that the worker has to forget; each is told once."""
        numbers = []
        while self._forgotten:
            numbers.append(self._forgotten.pop())
        return numbers


class Lease:
    """A segment in the hands of the caller. NumPy asks for the memory by ``__array_interface__``, and keeps this object
    alive with every array that is made of it."""

    def __init__(self, pool: Pool, segment: Segment, size: int) -> None:
        self._pool = pool
        self._segment = segment
        address = np.frombuffer(segment.memory, np.uint8, 1).__array_interface__["data"][0]
        self.__array_interface__ = {"data": (address, False), "shape": (size,), "typestr": "|u1", "version": 3}

    def __del__(self) -> None:
        self._pool.returned(self._segment)
