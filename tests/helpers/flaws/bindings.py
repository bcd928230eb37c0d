"""Flaws in io bindings."""

import ctypes
from dataclasses import replace

import numpy as np

from flaws.base import HONEST, Flawed, backend
from isorun.errors import BackendFailed
from isorun.plugin.backend import Binding


class _InOrderOfTheModel(Binding):
    def run(self):
        names = sorted(self._outputs, key=self._executable.names.index)
        return self._executable.run(names, self._feeds)


class _WritingOneMore(Binding):
    def run(self):
        results = super().run()
        for result in results:
            last = result.ctypes.data + result.nbytes
            if result.base is not None:
                ctypes.c_float.from_address(last).value = 0
        return results


class _ReusingOutputs(Binding):
    kept = None

    def run(self):
        results = super().run()
        self.kept = self.kept or results
        for kept, result in zip(self.kept, results, strict=True):
            if kept is not result:
                kept[...] = result
        return list(self.kept)


class _FloatsOnly(Binding):
    def run(self):
        results = super().run()
        for target in self._outputs.values():
            if target is not None and target.dtype != np.float32:
                target[...] = 0
        return results


class _Elsewhere(Binding):
    def run(self):
        return self._executable.run(list(self._outputs), self._feeds)


class _Earlier(Binding):
    def run(self):
        memory = self._executable.memory
        self._outputs = {name: memory.setdefault(name, array) for name, array in self._outputs.items()}
        return super().run()


class _Resizing(Binding):
    def run(self):
        results = self._executable.run(list(self._outputs), self._feeds)
        for memory, result in zip(self._outputs.values(), results, strict=True):
            if memory is not None:
                memory[...] = np.resize(result, memory.shape)
        return results


class _Last(Binding):
    def run(self):
        return self._executable.kept.run()


class _UnwrappedErrors(Binding):
    def run(self):
        try:
            return super().run()
        except BackendFailed as error:
            raise BackendFailed(str(error)) from None


@backend
class WritesToTheFirstMemory(Flawed):
    """What was bound first, by whatever binding."""

    def bind(self, feeds, outputs):
        self.memory = getattr(self, "memory", {})
        return _Earlier(self, feeds, outputs)


def binding(kind, keep=lambda number, array: array):
    """A backend with such bindings, which keep each feed as ``keep`` returns it."""

    class Binds(Flawed):
        def bind(self, feeds, outputs):
            kept = {name: keep(number, array) for number, (name, array) in enumerate(feeds.items())}
            return kind(self, kept, outputs)

    return backend(Binds)


@backend
class SharesOneBinding(Flawed):
    """The binding made last is every binding."""

    def bind(self, feeds, outputs):
        self.kept = Binding(self, feeds, outputs)
        return _Last(self, feeds, outputs)


ReadsBoundInputsOnce = binding(Binding, lambda _, array: array.copy())
ReadsTheSecondInputOnce = binding(Binding, lambda number, array: array.copy() if number else array)
ReadsStridedInputsOnce = binding(Binding, lambda _, array: np.ascontiguousarray(array))
IgnoresTheOrderOfBinding = binding(_InOrderOfTheModel)
IgnoresBoundMemory = binding(_Elsewhere)
WritesBeyondBoundMemory = binding(_WritingOneMore)
ReusesOutputsOfABinding = binding(_ReusingOutputs)
ForgetsTypesOfBoundMemory = binding(_FloatsOnly)
ResizesToBoundMemory = binding(_Resizing)
LosesTheCauseInABinding = binding(_UnwrappedErrors)


class _Spoiling(Binding):
    def run(self):
        try:
            return super().run()
        except BackendFailed:
            self._executable.spoiled = True
            raise


@backend
class SpoiledByAFailedBinding(Flawed):
    """Wrong after a run of a binding has failed."""

    capabilities = replace(HONEST, usable_after_failure=True)
    spoiled = False

    def bind(self, feeds, outputs):
        return _Spoiling(self, feeds, outputs)

    def run(self, output_names, feeds):
        return [result * (2 if self.spoiled else 1) for result in self.right(output_names, feeds)]
