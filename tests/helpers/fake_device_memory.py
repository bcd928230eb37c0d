"""Host memory as device memory; rejects calls outside the device's context."""

from __future__ import annotations

import ctypes
import threading
from contextlib import contextmanager
from types import SimpleNamespace

import numpy as np

ALIGNED = 256  # required alignment of addresses
_inside_of = threading.local()


def is_inside():
    """Whether this thread is in the device's context."""
    return bool(getattr(_inside_of, "depth", 0))


def at(address, shape, dtype):
    """The array at an address of the host."""
    size = int(np.prod(shape)) * dtype.itemsize
    return np.ndarray(tuple(shape), dtype, memoryview((ctypes.c_char * size).from_address(address)))


class HostMemory:
    """``isorun_backends.tensorrt.device_memory.Memory`` in host memory."""

    name = "host"

    def __init__(self, stream=None):
        self.allocated = self.copied = 0
        self._stream = stream

    @contextmanager
    def current(self):
        with _inside():
            yield

    def _inside(self):
        assert is_inside(), "outside current()"

    def stream(self):
        self._inside()
        return 1 if self._stream is None else self._stream.handle

    def allocate(self, nbytes):
        self._inside()
        self.allocated += nbytes
        held = np.zeros(nbytes + ALIGNED, np.uint8)
        return SimpleNamespace(address=-(-held.ctypes.data // ALIGNED) * ALIGNED, held=held)

    def pinned(self, shape, dtype):
        self._inside()
        return np.empty(shape, dtype)

    def to_device(self, address, array, stream):
        self._inside()
        ctypes.memmove(address, np.ascontiguousarray(array).ctypes.data, array.nbytes)

    def to_host(self, array, address, stream):
        self._inside()
        assert array.flags.c_contiguous
        ctypes.memmove(array.ctypes.data, address, array.nbytes)

    def copy(self, to, source, nbytes, stream):
        self._inside()
        ctypes.memmove(to, source, nbytes)
        self.copied += 1

    def synchronize(self, stream):
        self._inside()


def watched(cls):
    """A class of device memory that counts like :class:`HostMemory` and tracks the current context."""

    class Watched(cls):
        allocated = copied = 0

        @contextmanager
        def current(self):
            with super().current(), _inside():
                yield

        def allocate(self, nbytes):
            self.allocated += nbytes
            return super().allocate(nbytes)

        def copy(self, *arguments):
            self.copied += 1
            super().copy(*arguments)

    return Watched


@contextmanager
def _inside():
    _inside_of.depth = getattr(_inside_of, "depth", 0) + 1
    try:
        yield
    finally:
        _inside_of.depth -= 1
