"""Anonymous shared memory: a segment is gone when the last process that maps it is gone."""

from __future__ import annotations

import mmap
import os
from typing import Any

import numpy as np

from isorun.system import portable

_MIN_SIZE = 1 << 16
_ALIGNMENT = 64  # bytes: a cache line, and the widest vector register


def aligned(offset: int) -> int:
    """The next offset at which an array may start."""
    return -(-offset // _ALIGNMENT) * _ALIGNMENT


class Segment:
    """Memory that two processes share.

    Args:
        file: its file descriptor, which is closed once the memory is mapped.
        size: in bytes.
    """

    def __init__(self, file: int, size: int) -> None:
        try:
            self.size = size
            self._memory = mmap.mmap(file, size)
        finally:
            os.close(file)

    @classmethod
    def create(cls, size: int) -> tuple[Segment, int]:
        """A new segment of at least that size, and a file descriptor for the other process, which the caller closes.

        The size is rounded up to a power of two, so that segments rarely have to be replaced. Only pages that are
        written to take memory.
        """
        size = max(_MIN_SIZE, 1 << (size - 1).bit_length())
        file = portable.anonymous_file("isorun")
        try:
            os.ftruncate(file, size)
            return cls(os.dup(file), size), file
        except BaseException:
            os.close(file)
            raise

    def view(self, dtype: np.dtype[Any], shape: tuple[int, ...], offset: int) -> np.ndarray:
        """An array in the segment. The memory stays mapped as long as the array exists."""
        return np.ndarray(shape, dtype, self._memory, offset)
