"""Flaws in io bindings."""

from __future__ import annotations

import numpy as np

from flaws.base import Flawed, backend
from isorun.plugin.backend import Binding


class _Copying(Binding):
    def __init__(self, executable, feeds, outputs):
        super().__init__(executable, {name: array.copy() for name, array in feeds.items()}, outputs)


class _Elsewhere(Binding):
    def run(self):
        return self._executable.run(list(self._outputs), self._feeds)


class _Resizing(Binding):
    def run(self):
        results = self._executable.run(list(self._outputs), self._feeds)
        for memory, result in zip(self._outputs.values(), results, strict=True):
            if memory is not None:
                memory[...] = np.resize(result, memory.shape)
        return results


@backend
class ReadsBoundInputsOnce(Flawed):
    def bind(self, feeds, outputs):
        return _Copying(self, feeds, outputs)


@backend
class IgnoresBoundMemory(Flawed):
    def bind(self, feeds, outputs):
        return _Elsewhere(self, feeds, outputs)


@backend
class ResizesToBoundMemory(Flawed):
    def bind(self, feeds, outputs):
        return _Resizing(self, feeds, outputs)
