"""Flaws in what run() returns."""

from __future__ import annotations

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
class IgnoresStrides(Flawed):
    def run(self, output_names, feeds):
        taken = {}
        for name, array in feeds.items():
            base = array if array.base is None or array.flags.c_contiguous else np.asarray(array.base)
            taken[name] = np.resize(base.reshape(-1), array.shape).astype(array.dtype)
        return self.right(output_names, taken)
