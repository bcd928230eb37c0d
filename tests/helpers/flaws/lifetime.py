"""Flaws that show over many sessions and concurrent runs."""

import os
import subprocess
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from flaws.base import HONEST, Flawed, backend, doing, running
from isorun.errors import BackendFailed
from isorun.plugin.backend import Binding
from isorun_conformance.fakes import Right

LEAKED: list[Any] = []


def release():
    """Release what the backends leaked."""
    for leaked in LEAKED:
        if isinstance(leaked, int):
            os.close(leaked)
        elif isinstance(leaked, subprocess.Popen):
            leaked.kill()
            leaked.wait()
    LEAKED.clear()
    for memory in Path("/dev/shm").glob("isorun-flaw-*"):
        memory.unlink()


@backend
class ClearsOutputsOnClose(Flawed):
    returned: Any = ()

    def run(self, output_names, feeds):
        results = self.right(output_names, feeds)
        self.returned = [*self.returned, *results]
        return results

    def close(self):
        for result in self.returned:
            result[...] = np.nan


@backend
class WrongDuringClose(Flawed):
    closed = False
    capabilities = replace(HONEST, thread_safe=True, usable_after_failure=True)

    def run(self, output_names, feeds):
        results = self.right(output_names, feeds)
        return [result * 0 for result in results] if self.closed else results

    def close(self):
        self.closed = True


LeaksMemory = doing("close", lambda: LEAKED.append(np.ones(2**15)))  # 256 KiB
LeaksFiles = doing("close", lambda: LEAKED.append(os.open(os.devnull, os.O_RDONLY)))
LeaksProcesses = doing("close", lambda: len(LEAKED) < 60 and LEAKED.append(subprocess.Popen(["sleep", "60"])))
LeaksThreads, LeaksThreadsOfReports = (
    doing(moment, lambda: threading.Thread(target=time.sleep, args=(30,), daemon=True).start())
    for moment in ("close", "report")
)


@backend
class WritesToItsModel(Flawed):
    def __init__(self, model, config):
        super().__init__(model, config)
        self.path.write_bytes(self.path.read_bytes() + b"\x92\x03\x00")  # an unknown protobuf field


class LeaksByRun(Flawed):
    def __init__(self, model, config):
        super().__init__(model, config)
        self.leaked = []


@backend
class LeaksRuns(LeaksByRun):
    def run(self, output_names, feeds):
        self.leaked.append(np.ones(2**13))  # 64 KiB
        return self.right(output_names, feeds)


@backend
class LeaksShapes(LeaksByRun):
    seen: Any = frozenset()

    def run(self, output_names, feeds):
        if (shapes := tuple(np.shape(value) for value in feeds.values())) not in self.seen:
            self.seen |= {shapes}
            self.leaked.append(np.ones(2**13))
        return self.right(output_names, feeds)


@backend
class LeaksBindings(LeaksByRun):
    def bind(self, feeds, outputs):
        self.leaked.append(np.ones(2**13))
        return Binding(self, feeds, outputs)


@backend
class LeaksFailures(LeaksByRun):
    capabilities = replace(HONEST, usable_after_failure=True)

    def run(self, output_names, feeds):
        try:
            return self.right(output_names, feeds)
        except BackendFailed:
            self.leaked.append(np.ones(2**13))
            raise


@running
def WrongAfterManyRuns(self, output_names, feeds):
    self.kept = (self.kept or 0) + 1
    return [result * (2 if self.kept > 150 else 1) for result in self.right(output_names, feeds)]


@running
def Drifts(self, output_names, feeds):
    """The error of a run is too small to be found, and grows."""
    self.kept = (self.kept or 0) + 1
    return [result * np.float32(1 + 2e-6 * self.kept) for result in self.right(output_names, feeds)]


@backend
class WrongInTheHundredthSession(Flawed):
    opened: ClassVar[list[int]] = []

    def run(self, output_names, feeds):
        self.opened.append(1)
        return [result * (2 if len(self.opened) > 100 else 1) for result in self.right(output_names, feeds)]


class LeaksRefusedModels(Right):
    def compile(self, model, config):
        try:
            return super().compile(model, config)
        except BackendFailed:
            LEAKED.append(np.ones(2**13))
            raise


@backend
class ClosesTheOthers(Flawed):
    """The end of a session is the end of all."""

    open: ClassVar[set[int]] = set()

    def __init__(self, model, config):
        super().__init__(model, config)
        self.open.add(id(self))

    def run(self, output_names, feeds):
        if id(self) not in self.open:
            raise BackendFailed("the engine was shut down")
        return self.right(output_names, feeds)

    def close(self):
        self.open.clear()


@backend
class FreesTheMemoryOfOtherModels(Flawed):
    """Weights are in one arena, which ends at those of the model that is closed."""

    end: ClassVar[int] = 0

    def __init__(self, model, config):
        super().__init__(model, config)
        self.start = self.end
        type(self).end += 1

    def run(self, output_names, feeds):
        return [result * (1 if self.start < self.end else 2) for result in self.right(output_names, feeds)]

    def close(self):
        type(self).end = max(self.end - 2, 0)
        super().close()


@running
def SleepsBetweenRuns(self, output_names, feeds):
    """Loses its state if it is not used for a second."""
    before, self.kept = self.kept, time.monotonic()
    late = before is not None and self.kept - before > 1
    return [result * (2 if late else 1) for result in self.right(output_names, feeds)]


@backend
class SpinsBetweenRuns(Flawed):
    def run(self, output_names, feeds):
        if not self.kept:
            self.kept = threading.Event()
            threading.Thread(target=self.spin, daemon=True).start()
        return self.right(output_names, feeds)

    def spin(self):
        array = np.ones((256, 256), np.float32)
        while not self.kept.is_set():
            np.exp(array)

    def close(self):
        if self.kept:
            self.kept.set()


@backend
class SixteenHandles(Flawed):
    """The seventeenth open model takes the place of the first."""

    open: ClassVar[list] = []

    def __init__(self, model, config):
        super().__init__(model, config)
        self.open.append(self)
        self.place = (len(self.open) - 1) % 16

    def run(self, output_names, feeds):
        return next(model for model in reversed(self.open) if model.place == self.place).right(output_names, feeds)

    def close(self):
        if self in self.open:
            self.open.remove(self)


@running
def LeaksPerThread(self, output_names, feeds):
    """A buffer for each thread that has ever run."""
    self.kept = self.kept or {}
    name = threading.current_thread().name
    if name not in self.kept:
        self.kept[name] = np.ones(1 << 16, np.float32)
    return self.right(output_names, feeds)


@running
def KeepsWeightsPerShape(self, output_names, feeds):
    self.kept = self.kept or {}
    shape = next(iter(feeds.values())).shape
    if shape not in self.kept:
        self.kept[shape] = np.ones(1 << 20, np.float32)
    return self.right(output_names, feeds)
