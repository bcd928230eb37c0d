"""Races."""

import threading
import time
from dataclasses import replace
from typing import ClassVar

import numpy as np

from flaws.base import HONEST, Flawed, backend
from isorun.errors import BackendFailed
from isorun.plugin.backend import Binding

_SAFE = replace(HONEST, thread_safe=True, usable_after_failure=True)


@backend
class SharesOneBuffer(Flawed):
    """Declares that it is thread-safe, but keeps the outputs in one place."""

    capabilities = _SAFE

    def run(self, output_names, feeds):
        self.kept = self.right(output_names, feeds)
        time.sleep(0)
        return [np.array(result) for result in self.kept]


@backend
class SharesLargeMemory(Flawed):
    """As SharesOneBuffer, for outputs of some size only."""

    capabilities = _SAFE

    def run(self, output_names, feeds):
        results = self.right(output_names, feeds)
        if max(result.nbytes for result in results) < 1 << 17:
            return results
        self.kept = results
        time.sleep(0)
        return [np.array(result) for result in self.kept]


@backend
class PreparesShapesTwice(Flawed):
    """Right for a shape that was run before; when it is new, threads overwrite each other's work."""

    capabilities = _SAFE

    def run(self, output_names, feeds):
        shapes = tuple(array.shape for array in feeds.values())
        self.kept = self.kept or {}
        if shapes in self.kept:
            return self.right(output_names, feeds)
        self.buffer = self.right(output_names, feeds)
        time.sleep(0.001)
        self.kept[shapes] = True
        return [np.array(result) for result in self.buffer]


@backend
class SharesTheRequest(Flawed):
    """The outputs that were requested last apply to all."""

    capabilities = _SAFE

    def run(self, output_names, feeds):
        self.kept = output_names
        time.sleep(0)
        return self.right(self.kept, feeds)


@backend
class OneBindingAtATime(Flawed):
    capabilities = _SAFE

    def __init__(self, model, config):
        super().__init__(model, config)
        self.lock = threading.Lock()

    def bind(self, feeds, outputs):
        if not self.lock.acquire(timeout=0.01):
            raise BackendFailed("busy")
        try:
            time.sleep(0.02)
            return Binding(self, feeds, outputs)
        finally:
            self.lock.release()


@backend
class SpoiledByFailure(Flawed):
    """Wrong after a run has failed."""

    capabilities = replace(HONEST, usable_after_failure=True)
    spoiled = False

    def run(self, output_names, feeds):
        try:
            results = self.right(output_names, feeds)
        except BackendFailed:
            self.spoiled = True
            raise
        return [result * 2 for result in results] if self.spoiled else results


@backend
class SharesBetweenSessions(Flawed):
    """Keeps the outputs of all sessions in one place."""

    last: ClassVar[list[np.ndarray]] = []

    def run(self, output_names, feeds):
        self.last[:] = self.right(output_names, feeds)
        time.sleep(0.002)
        return [np.array(result) for result in self.last]


@backend
class EightContexts(Flawed):
    """A ninth run at once gets a context in use."""

    capabilities = _SAFE
    running: ClassVar[list] = []

    def run(self, output_names, feeds):
        self.running.append(self)
        crowded = len(self.running) > 8
        try:
            time.sleep(0.002)
            return [result * (2 if crowded else 1) for result in self.right(output_names, feeds)]
        finally:
            self.running.pop()
