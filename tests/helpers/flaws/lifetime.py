"""Flaws that show over many sessions and concurrent runs."""

from __future__ import annotations

import os
import subprocess
import threading
import time
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np

from flaws.base import HONEST, Flawed, backend, doing
from isorun.errors import BackendFailed
from isorun.plugin.backend import Binding

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


@backend
class WrongAfterManyRuns(Flawed):
    def run(self, output_names, feeds):
        self.kept = (self.kept or 0) + 1
        return [result * (2 if self.kept > 150 else 1) for result in self.right(output_names, feeds)]


@backend
class Drifts(Flawed):
    """The error of a run is too small to be found, and grows."""

    def run(self, output_names, feeds):
        self.kept = (self.kept or 0) + 1
        return [result * np.float32(1 + 2e-6 * self.kept) for result in self.right(output_names, feeds)]


@backend
class WrongInTheHundredthSession(Flawed):
    opened: ClassVar[list[int]] = []

    def run(self, output_names, feeds):
        self.opened.append(1)
        return [result * (2 if len(self.opened) > 100 else 1) for result in self.right(output_names, feeds)]
