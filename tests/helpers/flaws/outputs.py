"""Flaws in what run() returns."""

from __future__ import annotations

import ctypes

import numpy as np

from flaws.base import Flawed, backend


@backend
class IgnoresTheOrder(Flawed):
    def run(self, output_names, feeds):
        wanted = None if output_names is None else sorted(output_names, key=self.names.index)
        return self.right(wanted, feeds)


@backend
class ReturnsATuple(Flawed):
    def run(self, output_names, feeds):
        return tuple(self.right(output_names, feeds))


@backend
class ReturnsAllOutputs(Flawed):
    def run(self, output_names, feeds):
        return self.right(None, feeds)


@backend
class ReturnsItsFeeds(Flawed):
    """An output that equals a feed is that feed."""

    def run(self, output_names, feeds):
        return [
            next((feed for feed in feeds.values() if np.array_equal(feed, result)), result)
            for result in self.right(output_names, feeds)
        ]


@backend
class ReturnsFloat64(Flawed):
    def run(self, output_names, feeds):
        return [result.astype(np.float64) for result in self.right(output_names, feeds)]


@backend
class ReturnsColumnsFirst(Flawed):
    def run(self, output_names, feeds):
        return [np.asfortranarray(result) for result in self.right(output_names, feeds)]


@backend
class ReturnsPartsOfAPool(Flawed):
    def run(self, output_names, feeds):
        results = self.right(output_names, feeds)
        return [np.resize(result, 1 << 20)[: result.size].reshape(result.shape) for result in results]


@backend
class ReusesItsMemory(Flawed):
    """Every run of one shape writes to the arrays of the last."""

    def run(self, output_names, feeds):
        results = self.right(output_names, feeds)
        if self.kept is None or [each.shape for each in self.kept] != [each.shape for each in results]:
            self.kept = results
        for kept, result in zip(self.kept, results, strict=True):
            kept[...] = result
        return list(self.kept)


@backend
class NarrowsIntegers(Flawed):
    def run(self, output_names, feeds):
        results = self.right(output_names, feeds)
        return [result.astype(np.int32) if result.dtype == np.int64 else result for result in results]


@backend
class BytesForBooleans(Flawed):
    def run(self, output_names, feeds):
        results = self.right(output_names, feeds)
        return [result.astype(np.uint8) if result.dtype == bool else result for result in results]


@backend
class UnpacksScalars(Flawed):
    """Returns NumPy scalars for outputs of rank 0."""

    def run(self, output_names, feeds):
        return [result if result.ndim else result[()] for result in self.right(output_names, feeds)]


@backend
class SwapsTwoOfThree(Flawed):
    """Wrong for three outputs or more."""

    def run(self, output_names, feeds):
        results = self.right(output_names, feeds)
        return [*results[:-2], results[-1], results[-2]] if len(results) > 2 else results


@backend
class ReturnsViews(Flawed):
    """Outputs that are equal share their memory."""

    def run(self, output_names, feeds):
        results = self.right(output_names, feeds)
        first = results[0]
        return [first if np.array_equal(first, result) else result for result in results]


@backend
class ReadsItsOutputs(Flawed):
    """The next run on the same feeds returns what the last one left, which the caller may have changed."""

    def run(self, output_names, feeds):
        key = tuple(each.tobytes() for each in feeds.values())
        if self.kept is None or self.kept[0] != key:
            self.kept = key, self.right(output_names, feeds)
        return list(self.kept[1])


@backend
class FreesItsOutputs(Flawed):
    def run(self, output_names, feeds):
        results = self.right(output_names, feeds)
        return [self.freed(result) for result in results]

    def freed(self, result):
        library = ctypes.CDLL(None)
        library.malloc.restype = ctypes.c_void_p
        address = library.malloc(ctypes.c_size_t(result.nbytes))
        memory = np.frombuffer((ctypes.c_char * result.nbytes).from_address(address), result.dtype)
        memory[:] = result.reshape(-1)
        library.free(ctypes.c_void_p(address))
        return memory.reshape(result.shape)


@backend
class ReturnsASubclass(Flawed):
    def run(self, output_names, feeds):
        return [result.view(np.recarray) for result in self.right(output_names, feeds)]
