"""Flaws that show over many sessions and concurrent runs."""

from __future__ import annotations

import os
import subprocess
import threading
import time
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np

from flaws.base import HONEST, Flawed, backend

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
class SharesOneBuffer(Flawed):
    """Declares that it is thread-safe, but keeps the outputs in one place."""

    capabilities = replace(HONEST, thread_safe=True)

    def run(self, output_names, feeds):
        self.kept = self.right(output_names, feeds)
        time.sleep(0)
        return [np.array(result) for result in self.kept]


@backend
class SharesBetweenSessions(Flawed):
    """Keeps the outputs of all sessions in one place."""

    last: ClassVar[list[np.ndarray]] = []

    def run(self, output_names, feeds):
        self.last[:] = self.right(output_names, feeds)
        time.sleep(0.002)
        return [np.array(result) for result in self.last]


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
class RaisesDuringClose(Flawed):
    closed = False
    capabilities = replace(HONEST, thread_safe=True)

    def run(self, output_names, feeds):
        results = self.right(output_names, feeds)
        if self.closed:
            raise AttributeError("'NoneType' object has no attribute 'session'")
        return results

    def close(self):
        self.closed = True


@backend
class LeaksMemory(Flawed):
    def close(self):
        LEAKED.append(np.ones(2**15))  # 256 KiB


@backend
class LeaksFiles(Flawed):
    def close(self):
        LEAKED.append(os.open(os.devnull, os.O_RDONLY))


@backend
class LeaksProcesses(Flawed):
    def close(self):
        if len(LEAKED) < 60:
            LEAKED.append(subprocess.Popen(["sleep", "60"]))


@backend
class LeaksThreads(Flawed):
    def close(self):
        thread = threading.Thread(target=time.sleep, args=(30,), daemon=True)
        thread.start()


@backend
class WritesToItsModel(Flawed):
    def __init__(self, model, config):
        super().__init__(model, config)
        self.path.write_bytes(self.path.read_bytes() + b"\x92\x03\x00")  # an unknown protobuf field
