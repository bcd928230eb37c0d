"""Flaws in what run() returns."""

import ctypes
import itertools

import numpy as np

from flaws.base import returning, running


@running
def IgnoresTheOrder(self, output_names, feeds):
    wanted = None if output_names is None else sorted(output_names, key=self.names.index)
    return self.right(wanted, feeds)


@running
def ReturnsAllOutputs(self, output_names, feeds):
    return self.right(None, feeds)


@running
def ReturnsItsFeeds(self, output_names, feeds):
    """An output that equals a feed is that feed."""
    return [
        next((feed for feed in feeds.values() if np.array_equal(feed, result)), result)
        for result in self.right(output_names, feeds)
    ]


@running
def ReusesItsMemory(self, output_names, feeds):
    """Every run of one shape writes to the arrays of the last."""
    results = self.right(output_names, feeds)
    if self.kept is None or [array.shape for array in self.kept] != [array.shape for array in results]:
        self.kept = results
    for kept, result in zip(self.kept, results, strict=True):
        kept[...] = result
    return list(self.kept)


@running
def ReadsItsOutputs(self, output_names, feeds):
    """The next run on the same feeds returns what the last one left, which the caller may have changed."""
    key = tuple(array.tobytes() for array in feeds.values())
    if self.kept is None or self.kept[0] != key:
        self.kept = key, self.right(output_names, feeds)
    return list(self.kept[1])


def freed(result):
    """A copy in memory that is free."""
    library = ctypes.CDLL(None)
    library.malloc.restype = ctypes.c_void_p
    address = library.malloc(ctypes.c_size_t(result.nbytes))
    memory = np.frombuffer((ctypes.c_char * result.nbytes).from_address(address), result.dtype)
    memory[:] = result.reshape(-1)
    library.free(ctypes.c_void_p(address))
    return memory.reshape(result.shape)


def cast(kind, to):
    """A backend whose outputs of a type are of another."""
    return returning(lambda results: [array.astype(to) if array.dtype == kind else array for array in results])


def locked(result):
    """The same array, which cannot be written to."""
    result.flags.writeable = False
    return result


ReturnsATuple = returning(lambda results: tuple(results))
ReturnsFloat64 = returning(lambda results: [array.astype(np.float64) for array in results])
ReturnsColumnsFirst = returning(lambda results: [np.asfortranarray(array) for array in results])
ReturnsPartsOfAPool = returning(
    lambda results: [np.resize(array, 1 << 20)[: array.size].reshape(array.shape) for array in results]
)
ReturnsASubclass = returning(lambda results: [array.view(np.recarray) for array in results])
LocksItsOutputs = returning(lambda results: [locked(array) for array in results])
FreesItsOutputs = returning(lambda results: [freed(array) for array in results])
NarrowsIntegers = cast(np.int64, np.int32)
BytesForBooleans = cast(bool, np.uint8)
UnpacksScalars = returning(
    lambda results: [value if isinstance(value, list) or value.ndim else value[()] for value in results]
)
SwapsTwoOfThree = returning(lambda results: [*results[:-2], *results[:-3:-1]] if len(results) > 2 else results)
ReturnsViews = returning(
    lambda results: [results[0] if np.array_equal(results[0], array) else array for array in results]
)


def in_sequences(change):
    """A backend that changes the arrays of a sequence."""
    return returning(lambda results: [change(value) if isinstance(value, list) else value for value in results])


ReversesSequences = in_sequences(lambda arrays: arrays[::-1])
DropsEmptyArrays = in_sequences(lambda arrays: [array for array in arrays if array.size])
RepeatsAnArray = in_sequences(lambda arrays: [*arrays[:-1], arrays[-2]])
KeepsTextInNumPy = returning(
    lambda results: [
        value.astype("U").astype(object) if isinstance(value, np.ndarray) and value.dtype == object else value
        for value in results
    ]
)


@running
def ReturnsItsWeights(self, output_names, feeds):
    """An output that depends on no feed is in the engine's own memory."""
    self.kept = self.kept or {}
    results = zip(output_names, self.right(output_names, feeds), strict=True)
    return [self.kept.setdefault(name, result) if name == "w" else result for name, result in results]


@running
def ReusesLargeMemory(self, output_names, feeds):
    """Of outputs above a megabyte only."""
    results = self.right(output_names, feeds)
    if max(result.nbytes for result in results) < 1 << 20:
        return results
    self.kept = self.kept or results
    for kept, result in zip(self.kept, results, strict=True):
        kept[...] = result
    return list(self.kept)


@running
def PoolsLargeMemory(self, output_names, feeds):
    """Outputs above a megabyte are those of eight runs before."""
    results = self.right(output_names, feeds)
    if max(result.nbytes for result in results) < 1 << 20:
        return results
    self.kept = self.kept or itertools.cycle([[] for _ in range(8)])
    arrays = next(self.kept)
    arrays[:] = arrays or results
    for array, result in zip(arrays, results, strict=True):
        array[...] = result
    return list(arrays)


@running
def ReturnsReshapedFeeds(self, output_names, feeds):
    """A feed in another shape is a view of it."""
    return [
        next((x.reshape(y.shape) for x in feeds.values() if y.ndim > x.ndim and np.array_equal(x.flat, y.flat)), y)
        for y in self.right(output_names, feeds)
    ]
