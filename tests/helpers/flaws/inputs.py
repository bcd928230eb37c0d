"""Flaws in how feeds are read."""

from __future__ import annotations

import re

import numpy as np

from flaws.base import Flawed, backend, reading, returning
from isorun.errors import BackendFailed


@backend
class ChangesItsFeeds(Flawed):
    def run(self, output_names, feeds):
        results = self.right(output_names, feeds)
        for array in feeds.values():
            if array.flags.writeable:
                array[...] = 0
        return results


@backend
class UnmasksEmptyRows(Flawed):
    """Against NaN, in the mask of the caller."""

    def run(self, output_names, feeds):
        mask = feeds.get("attention_mask")
        if mask is not None and mask.flags.writeable:
            mask[~mask.any(axis=-1)] = 1
        return self.right(output_names, feeds)


@backend
class KeepsTheFirstScale(Flawed):
    """Uploads an input that has a default value once."""

    def run(self, output_names, feeds):
        self.kept = self.kept or {}
        kept = {name: self.kept.setdefault(name, array) for name, array in feeds.items() if name == "scale"}
        return self.right(output_names, {**self.kept, **feeds, **kept})


@backend
class IgnoresTheScaleThatIsFed(Flawed):
    def run(self, output_names, feeds):
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


@backend
class KeepsResultsByTheFirstFeed(Keeping):
    def key(self, feeds):
        return next(iter(feeds.values())).tobytes()


@backend
class KeepsResultsByArray(Keeping):
    def key(self, feeds):
        return tuple(map(id, feeds.values()))


@backend
class KeepsResultsByTheirEnds(Keeping):
    def key(self, feeds):
        return tuple(
            (array.shape, array.reshape(-1)[:3].tobytes(), array.reshape(-1)[-3:].tobytes()) for array in feeds.values()
        )


@backend
class KeepsResultsByTheirPrint(Keeping):
    def key(self, feeds):
        return repr(feeds)


@backend
class TakesFeedsByPosition(Flawed):
    def run(self, output_names, feeds):
        return self.right(output_names, dict(zip(self.inputs, feeds.values(), strict=True)))


@backend
class DropsFeeds(Flawed):
    """Takes feeds out of the caller's mapping."""

    def run(self, output_names, feeds):
        results = self.right(output_names, feeds)
        feeds.popitem()
        return results


@backend
class RefusesUnusedInputs(Flawed):
    def run(self, output_names, feeds):
        if "unused" in feeds:
            raise BackendFailed("no input is called unused")
        return self.right(output_names, feeds)


@backend
class AsciiNames(Flawed):
    def run(self, output_names, feeds):
        if not all(name.isascii() for name in feeds):
            raise BackendFailed("no such input")
        return self.right(output_names, feeds)


@backend
class MakesIdentifiers(Flawed):
    """Of names, as code that is generated needs; two names may give the same."""

    def run(self, output_names, feeds):
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


@backend
class IdsInHalf(Flawed):
    """Token ids pass through fp16, as on accelerators without integers."""

    def run(self, output_names, feeds):
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


@backend
class SortsTheRequest(Flawed):
    """Sorts the caller's list of outputs."""

    def run(self, output_names, feeds):
        results = self.right(list(output_names), feeds)
        output_names.sort()
        return results


@backend
class SharesRowsByFirstToken(Flawed):
    """Computes rows once that begin with the same token."""

    def run(self, output_names, feeds):
        results = self.right(output_names, feeds)
        ids = feeds.get("input_ids", np.zeros((0, 1)))
        first = {row[:1].tobytes(): number for number, row in reversed(list(enumerate(ids)))}
        for number, row in enumerate(ids):
            for result in results:
                result[number] = result[first[row[:1].tobytes()]]
        return results
