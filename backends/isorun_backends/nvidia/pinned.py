"""Pinned host memory, which a GPU copies from and to directly: twice as fast as other memory, and slow to allocate.

Blocks are therefore kept. An array belongs to the caller; its block is reused once nothing refers to the array. Not run
on a GPU yet.
"""

from __future__ import annotations

import ctypes
import weakref
from collections import defaultdict
from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from isorun_backends.nvidia import cuda_driver

_MINIMUM = 4096  # bytes


class Pinned:
    """Arrays for one GPU, in blocks of powers of two. Memory grows to the most that was held at once.

    Args:
        device: the index of the GPU.
    """

    def __init__(self, device: int) -> None:
        self._device = device
        self._free: defaultdict[int, list[int]] = defaultdict(list)  # addresses by size

    def array(self, shape: Sequence[int], dtype: np.dtype[Any]) -> np.ndarray:
        """An uninitialized array."""
        size = max(_MINIMUM, 1 << (prod(shape) * dtype.itemsize - 1).bit_length())
        free = self._free[size]
        try:
            address = free.pop()  # atomic, like append
        except IndexError:
            address = cuda_driver.host_memory(size, self._device)
        memory = (ctypes.c_char * size).from_address(address)
        weakref.finalize(memory, free.append, address).atexit = False
        return np.ndarray(shape, dtype, memoryview(memory))

    def fetch(self, address: int, shape: Sequence[int], dtype: np.dtype[Any]) -> np.ndarray:
        """A copy of device memory. Whatever writes to the address must be finished."""
        array = self.array(shape, dtype)
        if array.size:
            cuda_driver.copy_to_host(array, address, self._device)
        return array
