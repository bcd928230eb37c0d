"""Flaws in how feeds are read."""

import re

import numpy as np

from flaws.base import Flawed, backend, overriding, reading, returning, running
from isorun.errors import BackendFailed


@running
def ChangesItsFeeds(self, output_names, feeds):
    results = self.right(output_names, feeds)
    for array in feeds.values():
        if array.flags.writeable:
            array[...] = 0
    return results


@running
def UnmasksEmptyRows(self, output_names, feeds):
    """Against NaN, in the mask of the caller."""
    mask = feeds.get("attention_mask")
    if mask is not None and mask.flags.writeable:
        mask[~mask.any(axis=-1)] = 1
    return self.right(output_names, feeds)


@running
def KeepsTheFirstScale(self, output_names, feeds):
    """Uploads an input that has a default value once."""
    self.kept = self.kept or {}
    kept = {name: self.kept.setdefault(name, array) for name, array in feeds.items() if name == "scale"}
    return self.right(output_names, {**self.kept, **feeds, **kept})


@running
def IgnoresTheScaleThatIsFed(self, output_names, feeds):
    return self.right(output_names, {name: array for name, array in feeds.items() if name != "scale"})


def unstrided(array):
    """What is in an array's memory one after another."""
    base = array if array.base is None or array.flags.c_contiguous else np.asarray(array.base)
    return np.resize(base.reshape(-1), array.shape).astype(array.dtype)


def changing(change, kind=None):
    """A backend that changes each feed, or those of a type."""
    return reading(
        lambda feeds: {
            name: change(array) if kind is None or array.dtype == kind else array for name, array in feeds.items()
        }
    )


IgnoresStrides = changing(unstrided)
IgnoresStridesOfTokens = changing(unstrided, np.int64)
TakesNegativesForZero = changing(lambda array: np.maximum(array, 0), np.int64)
ComputesInInt32 = changing(lambda array: array.astype(np.int32).astype(np.int64), np.int64)


class Keeping(Flawed):
    """Returns the earlier result where :meth:`key` of the feeds is the same."""

    def run(self, output_names, feeds):
        key = (tuple(output_names or ()), self.key(feeds))
        self.kept = self.kept or {}
        if key not in self.kept:
            self.kept[key] = self.right(output_names, feeds)
        return [np.array(result) for result in self.kept[key]]


keeping = overriding(Keeping, "key")


@keeping
def KeepsResultsByTheFirstFeed(self, feeds):
    return next(iter(feeds.values())).tobytes()


@keeping
def KeepsResultsByArray(self, feeds):
    return tuple(map(id, feeds.values()))


@keeping
def KeepsResultsByTheirEnds(self, feeds):
    return tuple(
        (array.shape, array.reshape(-1)[:3].tobytes(), array.reshape(-1)[-3:].tobytes()) for array in feeds.values()
    )


@keeping
def KeepsResultsByTheirPrint(self, feeds):
    return repr(feeds)


@running
def TakesFeedsByPosition(self, output_names, feeds):
    return self.right(output_names, dict(zip(self.inputs, feeds.values(), strict=True)))


@running
def DropsFeeds(self, output_names, feeds):
    """Takes feeds out of the caller's mapping."""
    results = self.right(output_names, feeds)
    feeds.popitem()
    return results


@running
def RefusesUnusedInputs(self, output_names, feeds):
    if "unused" in feeds:
        raise BackendFailed("no input is called unused")
    return self.right(output_names, feeds)


@running
def AsciiNames(self, output_names, feeds):
    if not all(name.isascii() for name in feeds):
        raise BackendFailed("no such input")
    return self.right(output_names, feeds)


@running
def MakesIdentifiers(self, output_names, feeds):
    """Of names, as code that is generated needs; two names may give the same."""
    arguments = {identifier(name): array for name, array in feeds.items()}
    return self.right(output_names, {name: arguments[identifier(name)] for name in feeds})


def identifier(name):
    """What is called by a name in code."""
    return re.sub(r"\W", "_", name)


@backend
class FeedsByKeyword(Flawed):
    def run(self, output_names, feeds):
        return self.called(output_names, **feeds)

    def called(self, output_names, **feeds):
        return self.right(output_names, feeds)


@running
def IdsInHalf(self, output_names, feeds):
    """Token ids pass through fp16, as on accelerators without integers."""
    ids = {name: array for name, array in feeds.items() if name == "input_ids"}
    narrowed = {name: np.minimum(array, 65504).astype(np.float16).astype(np.int64) for name, array in ids.items()}
    return self.right(output_names, {**feeds, **narrowed})


def rewriting(change):
    """A backend that changes each text of its results."""
    return returning(
        lambda results: [
            np.array([change(text) for text in result.flat], object).reshape(result.shape)
            if result.dtype == object
            else result
            for result in results
        ]
    )


CutsText = rewriting(lambda text: text[:9])
StripsText = rewriting(str.strip)
EndsTextAtNul = rewriting(lambda text: text.partition("\0")[0])


ComputesIntegersInFloat = changing(lambda array: array.astype(np.float64).astype(np.int64), np.int64)


@running
def SortsTheRequest(self, output_names, feeds):
    """Sorts the caller's list of outputs."""
    results = self.right(list(output_names), feeds)
    output_names.sort()
    return results


@running
def SharesRowsByFirstToken(self, output_names, feeds):
    """Computes rows once that begin with the same token."""
    results = self.right(output_names, feeds)
    ids = feeds.get("input_ids", np.zeros((0, 1)))
    first = {row[:1].tobytes(): number for number, row in reversed(list(enumerate(ids)))}
    for number, row in enumerate(ids):
        for result in results:
            result[number] = result[first[row[:1].tobytes()]]
    return results
