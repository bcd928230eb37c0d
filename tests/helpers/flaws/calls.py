"""Wrong behaviour of calls that succeed."""

from __future__ import annotations

import threading
from dataclasses import replace

import numpy as np

from flaws.base import HONEST, Flawed, backend
from isorun.plugin.backend import Binding


@backend
class IgnoresTheOrder(Flawed):
    def run(self, output_names, feeds):
        wanted = None if output_names is None else sorted(output_names, key=self.names.index)
        return self.right(wanted, feeds)


@backend
class GivesATuple(Flawed):
    def run(self, output_names, feeds):
        return tuple(self.right(output_names, feeds))


@backend
class GivesAll(Flawed):
    """Whatever is asked for."""

    def run(self, output_names, feeds):
        return self.right(None, feeds)


@backend
class HandsOnItsFeeds(Flawed):
    """What is the same as a feed is that feed."""

    def run(self, output_names, feeds):
        return [
            next((feed for feed in feeds.values() if np.array_equal(feed, result)), result)
            for result in self.right(output_names, feeds)
        ]


@backend
class Widens(Flawed):
    def run(self, output_names, feeds):
        return [result.astype(np.float64) for result in self.right(output_names, feeds)]


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
class ChangesItsFeeds(Flawed):
    def run(self, output_names, feeds):
        results = self.right(output_names, feeds)
        for array in feeds.values():
            if array.flags.writeable:
                array[...] = 0
        return results


@backend
class ReadsMemoryAsItLies(Flawed):
    """It takes the pointer and forgets the strides."""

    def run(self, output_names, feeds):
        taken = {}
        for name, array in feeds.items():
            base = array if array.base is None or array.flags.c_contiguous else np.asarray(array.base)
            flat = base.reshape(-1)
            taken[name] = np.resize(flat, array.shape).astype(array.dtype)
        return self.right(output_names, taken)


@backend
class TakesEveryCore(Flawed):
    capabilities = replace(HONEST, sets_threads=True)

    def run(self, output_names, feeds):
        busy = threading.Event()
        others = [threading.Thread(target=self.spin, args=(busy,)) for _ in range(2)]
        for other in others:
            other.start()
        results = self.right(output_names, feeds)
        busy.set()
        for other in others:
            other.join()
        return results

    def spin(self, busy):
        array = np.ones((256, 256), np.float32)
        while not busy.is_set():
            np.exp(array)  # without Python's lock


class _Fixed(Binding):
    def __init__(self, executable, feeds, outputs):
        super().__init__(executable, {name: array.copy() for name, array in feeds.items()}, outputs)


@backend
class BindsOnce(Flawed):
    def bind(self, feeds, outputs):
        return _Fixed(self, feeds, outputs)


class _Elsewhere(Binding):
    def run(self):
        return self._executable.run(list(self._outputs), self._feeds)


@backend
class WritesElsewhere(Flawed):
    def bind(self, feeds, outputs):
        return _Elsewhere(self, feeds, outputs)


class _Forcing(Binding):
    def run(self):
        results = self._executable.run(list(self._outputs), self._feeds)
        for given, result in zip(self._outputs.values(), results, strict=True):
            if given is not None:
                given[...] = np.resize(result, given.shape)
        return results


@backend
class WritesWhatDoesNotFit(Flawed):
    def bind(self, feeds, outputs):
        return _Forcing(self, feeds, outputs)
