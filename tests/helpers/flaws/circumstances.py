"""Flaws that show beside other sessions, after a fork, or under an application's own settings."""

import asyncio
import os
import threading
import warnings
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import numpy as np

from flaws.base import Flawed, backend, running
from isorun.errors import BackendFailed
from isorun_conformance.fakes import Right


class Reusing(Flawed):
    """The executable of an earlier model of the same :meth:`key` computes."""

    earlier: ClassVar[dict]

    def __init__(self, model, config):
        super().__init__(model, config)
        self.chosen = self.earlier.setdefault(self.key(model, config), self)

    def run(self, output_names, feeds):
        return self.chosen.right(output_names, feeds)

    def close(self):
        pass


@backend
class ReusesModelsByStructure(Reusing):
    earlier: ClassVar[dict] = {}

    def key(self, model, config):
        return str(model.info)


@backend
class ReusesModelsByPath(Reusing):
    earlier: ClassVar[dict] = {}

    def key(self, model, config):
        return model.path


@backend
class OnlyTheLastSessionComputes(Flawed):
    last: ClassVar[list] = [None]

    def __init__(self, model, config):
        super().__init__(model, config)
        self.last[0] = self

    def run(self, output_names, feeds):
        results = self.right(output_names, feeds)
        return results if self.last[0] is self else [result * 2 for result in results]


class SpoiledByARefusal(Right):
    spoiled = False

    def compile(self, model, config):
        try:
            executable = super().compile(model, config)
        except Exception:
            type(self).spoiled = True
            raise
        if self.spoiled:
            raise BackendFailed("an earlier model has failed")
        return executable


@backend
class BoundToItsThread(Flawed):
    def __init__(self, model, config):
        super().__init__(model, config)
        self.thread = threading.current_thread()

    def run(self, output_names, feeds):
        if threading.current_thread() is not self.thread:
            raise BackendFailed("no context on this thread")
        return self.right(output_names, feeds)


@backend
class AsciiPaths(Flawed):
    def __init__(self, model, config):
        if not str(model.path).isascii():
            raise BackendFailed("no such file")
        super().__init__(model, config)


@running
def DividesByZero(self, output_names, feeds):
    """Its arithmetic follows the application's settings of NumPy."""
    np.ones(1) / np.zeros(1)
    return self.right(output_names, feeds)


@backend
class DividesByZeroInCompile(Flawed):
    def __init__(self, model, config):
        super().__init__(model, config)
        with warnings.catch_warnings(action="ignore"):
            np.ones(1) / np.zeros(1)


@running
def Warns(self, output_names, feeds):
    warnings.warn("slow path", RuntimeWarning, stacklevel=1)
    return self.right(output_names, feeds)


@backend
class FindsItsModelByARelativePath(Flawed):
    def __init__(self, model, config):
        super().__init__(model, config)
        self.folder = Path.cwd()

    def run(self, output_names, feeds):
        if Path.cwd() != self.folder:
            raise BackendFailed("no such file")
        return self.right(output_names, feeds)


@backend
class SpoiledByAFork(Flawed):
    forks: ClassVar[list] = []

    def __init__(self, model, config):
        super().__init__(model, config)
        os.register_at_fork(after_in_parent=lambda: self.forks.append(1))
        self.before = len(self.forks)

    def run(self, output_names, feeds):
        results = self.right(output_names, feeds)
        return results if len(self.forks) == self.before else [result * 2 for result in results]


class OnePrecision(Right):
    """Declares fp16 too; the precision of the session opened last applies to all."""

    capabilities = replace(Right.capabilities, precisions=("fp32", "fp16"))
    last: ClassVar[list] = ["fp32"]

    def compile(self, model, config):
        return _InOnePrecision(model, config, self.last)


class _InOnePrecision(Flawed):
    def __init__(self, model, config, last):
        super().__init__(model, replace(config, precision="fp32"))
        self.last, self.precision = last, config.precision
        last[0] = config.precision

    def run(self, output_names, feeds):
        results = self.right(output_names, feeds)
        scale = 1 + 3e-4 if self.last[0] == "fp16" else 1
        return [(result * scale).astype(result.dtype) for result in results]


@running
def RunsOutsideEventLoopsOnly(self, output_names, feeds):
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return self.right(output_names, feeds)
    raise BackendFailed("asyncio.run() cannot be called from a running event loop")


@backend
class ComputesInOneProcess(Flawed):
    """Its threads are those of the process that opened the first model."""

    first = os.getpid()

    def run(self, output_names, feeds):
        if os.getpid() != self.first:
            raise BackendFailed("no thread answers")
        return self.right(output_names, feeds)
