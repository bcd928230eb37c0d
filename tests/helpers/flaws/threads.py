"""Flaws in the number of threads."""

import ctypes
import os
import threading
import time
from dataclasses import replace
from typing import ClassVar

import numpy as np

from flaws.accuracy import Scaling
from flaws.base import HONEST, Flawed, backend, running
from flaws.pooled import HonestWithAPool
from isorun_conformance.fakes import Right


@backend
class UsesEveryCore(Flawed):
    capabilities = replace(HONEST, sets_threads=True)

    def run(self, output_names, feeds):
        done = threading.Event()
        threads = [threading.Thread(target=self.spin, args=(done,)) for _ in range(8)]
        for thread in threads:
            thread.start()
        results = self.right(output_names, feeds)
        done.set()
        for thread in threads:
            thread.join()
        return results

    def spin(self, done):
        array = np.ones((256, 256), np.float32)
        while not done.is_set():
            np.exp(array)  # without the GIL


class ExceedsItsFixedThreads(UsesEveryCore):
    capabilities = replace(HONEST, fixed_threads=1)


class WrongOnTwoThreads(Right):
    capabilities = replace(HONEST, sets_threads=True)

    def compile(self, model, config):
        return (Scaling if config.threads == 2 else Flawed)(model, config)


@backend
class LosesTheRemainder(Flawed):
    """Leaves out the rows that remain where threads share many equally."""

    capabilities = replace(HONEST, sets_threads=True)

    def __init__(self, model, config):
        super().__init__(model, config)
        self.threads = config.threads

    def run(self, output_names, feeds):
        results = self.right(output_names, feeds)
        rows = min(map(len, results))
        for result in results if rows > 4 else []:
            result[rows - rows % self.threads :] = 0
        return results


@backend
class BindsItsThread(Flawed):
    """Binds the thread that computes to the first core, as every other model's."""

    capabilities = replace(HONEST, sets_threads=True)

    def run(self, output_names, feeds):
        if not self.kept:
            self.kept = threading.Event()
            bound = threading.Event()
            threading.Thread(target=self._bind, args=(bound, self.kept), daemon=True).start()
            bound.wait()
        return self.right(output_names, feeds)

    def _bind(self, bound, end):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
        bound.set()
        end.wait()

    def close(self):
        if self.kept:
            self.kept.set()


@backend
class ComputesOnOneThread(Flawed):
    """Declares that the number of threads can be set, and ignores it."""

    capabilities = replace(HONEST, sets_threads=True)

    def run(self, output_names, feeds):
        self.kept = self.kept or self.right(output_names, feeds)  # once: NumPy's products have threads of their own
        for _ in range(2000):
            np.exp(np.ones((256, 256), np.float32))
        return self.kept


class KeepsTheFirstThreads(HonestWithAPool):
    """Compiles a model for the number of threads that it was first opened with."""

    first: ClassVar = {}

    def compile(self, model, config):
        alone = self.first.setdefault(model.path, config.threads) == 1
        return (ComputesOnOneThread if alone else HonestWithAPool).compile(self, model, config)


@running
def KeepsPythonsLock(self, output_names, feeds):
    started = time.monotonic()
    results = self.right(output_names, feeds)
    most = max(0.05, 20 * (time.monotonic() - started))  # of the run
    ctypes.PyDLL(None).usleep(int(most * 1e6))  # without releasing the GIL
    return results


@backend
class OneRunAtATime(Flawed):
    """It declares that runs proceed on the threads of their callers, and one lock serializes them."""

    capabilities = replace(HONEST, sets_threads=True, thread_safe=True, usable_after_failure=True, runs_on_caller=True)
    lock = threading.Lock()

    def run(self, output_names, feeds):
        (x,) = feeds.values()
        with self.lock:
            for _ in range(20):
                x = np.exp(-np.abs(x))  # on one core, without the GIL
        return [x]
