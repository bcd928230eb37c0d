"""Backends with one flaw each, right in everything else: every check of the conformance suite has one to catch.

A backend's name is its class's.
"""

from __future__ import annotations

import itertools
import os
import subprocess
import threading
import time
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np

from isorun.backend import Backend, Binding, Executable
from isorun.errors import BackendFailed, BackendUnavailable, InvalidModel, IsorunError
from isorun.testing.fakes import Right, RightExecutable
from isorun.types import Availability

HONEST = Right.capabilities
LEAKED: list[Any] = []


class Flawed(RightExecutable):
    """What most flaws need to know."""

    def __init__(self, model, config):
        super().__init__(model, config)
        self.path = model.path
        self.names = [spec.name for spec in model.info.outputs]
        self.kept = None

    def right(self, output_names, feeds):
        return super().run(output_names, feeds)


def backend(cls):
    """A backend class around an executable class."""

    class Made(Right):
        capabilities = getattr(cls, "capabilities", HONEST)

        def compile(self, model, config):
            return cls(model, config)

    Made.__name__ = Made.__qualname__ = cls.__name__
    return Made


# Metadata and availability


class DialectsAreAString(Right):
    capabilities = replace(HONEST, dialects="primitive")


class UnknownDialect(Right):
    capabilities = replace(HONEST, dialects=("primitve",))


class UnknownReport(Right):
    capabilities = replace(HONEST, reports=("placement", "temperature"))


class NoDevice(Right):
    capabilities = replace(HONEST, devices=())


class BareOption(Right):
    capabilities = replace(HONEST, options={"knob": ""})


class OtherName(Right):
    def __init__(self, name):
        super().__init__("another")


class AlwaysHere(Right):
    def availability(self):
        return Availability(ok=True)


class Fickle(Right):
    """It says no, and yes when asked again."""

    asked = itertools.count()

    def availability(self):
        return Availability(ok=next(self.asked) > 0, reason="it sleeps", remedy="Wake it.")


class NoRemedy(Right):
    def availability(self):
        return Availability(ok=False, reason="it is Monday")


class Rude(Right):
    def availability(self):
        raise OSError("the driver is upset")


class ImportsAtTheTop(Right):
    def availability(self):
        import onnx  # noqa: F401

        return super().availability()


class NeverComputes(Right):
    def compile(self, model, config):
        raise BackendUnavailable(self.name, "it has no device", "Buy one.")


# Answers


@backend
class CountsTheMask(Flawed):
    """As ONNX Runtime's EmbedLayerNormalization does: right padding is fine, and nothing else."""

    def run(self, output_names, feeds):
        mask = feeds.get("attention_mask")
        if mask is not None:
            feeds = {**feeds, "attention_mask": np.sort(mask, axis=1)[:, ::-1].copy()}
        return self.right(output_names, feeds)


@backend
class WrongBeyondTheFirstShape(Flawed):
    def run(self, output_names, feeds):
        shapes = {name: array.shape for name, array in feeds.items()}
        self.kept = self.kept or shapes
        results = self.right(output_names, feeds)
        return results if shapes == self.kept else [result * 1.5 for result in results]


@backend
class WrongForWideModels(Flawed):
    def run(self, output_names, feeds):
        results = self.right(output_names, feeds)
        return [result * 1.01 if "input_ids" in feeds and result.shape[-1] > 200 else result for result in results]


@backend
class NotDeterministic(Flawed):
    def run(self, output_names, feeds):
        return [
            result * (1 + 2e-5 * np.random.default_rng().standard_normal())
            for result in self.right(output_names, feeds)
        ]


@backend
class RefusesFixedShapes(Flawed):
    def __init__(self, model, config):
        if all(isinstance(size, int) for spec in model.info.inputs for size in spec.shape):
            raise BackendFailed("it takes symbolic shapes alone")
        super().__init__(model, config)


class WrongOnTwoThreads(Right):
    capabilities = replace(HONEST, sets_threads=True)

    def compile(self, model, config):
        return _Doubling(model, config) if config.threads == 2 else Flawed(model, config)


class _Doubling(Flawed):
    def run(self, output_names, feeds):
        return [result * 2 for result in self.right(output_names, feeds)]


@backend
class AlwaysTwice(Flawed):
    def run(self, output_names, feeds):
        return [result * 2 for result in self.right(output_names, feeds)]


class GuessesShapes(Right):
    """It declares fixed shapes, takes symbolic ones, and cuts what does not fit."""

    capabilities = replace(HONEST, dynamic_shapes=False)

    def compile(self, model, config):
        return _Cutting(model, config)


class _Cutting(Flawed):
    def run(self, output_names, feeds):
        return [result if len(result) < 4 else result * 2 for result in self.right(output_names, feeds)]


class Silent(Right):
    """It declares fixed shapes and refuses others without a word why."""

    capabilities = replace(HONEST, dynamic_shapes=False)

    def compile(self, model, config):
        if any(isinstance(size, str) for spec in model.info.inputs for size in spec.shape):
            raise BackendUnavailable(self.name, "no", "No.")
        return Flawed(model, config)


# Calls


@backend
class IgnoresTheOrder(Flawed):
    def run(self, output_names, feeds):
        wanted = None if output_names is None else sorted(output_names, key=self.names.index)
        return self.right(wanted, feeds)


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


# Failures


class ClaimsToCheckIndices(Right):
    capabilities = replace(HONEST, checks_indices=True)

    def compile(self, model, config):
        return _Clipping(model, config)


class _Clipping(Flawed):
    """As runtimes do that gather without looking: numbers come, and no error."""

    def run(self, output_names, feeds):
        if "input_ids" in feeds:
            feeds = {**feeds, "input_ids": np.clip(feeds["input_ids"], 0, 98)}
        return self.right(output_names, feeds)


@backend
class SpoiledByBadFeeds(Flawed):
    """Once a run has failed, no later one is right."""

    spoiled = False
    capabilities = replace(HONEST, checks_indices=True)

    def run(self, output_names, feeds):
        if "input_ids" in feeds and not ((feeds["input_ids"] >= 0) & (feeds["input_ids"] < 99)).all():
            self.spoiled = True
            raise BackendFailed("an index is outside") from IndexError("99")
        results = self.right(output_names, feeds)
        return [result * 2 for result in results] if self.spoiled else results


@backend
class LetsErrorsThrough(Flawed):
    def run(self, output_names, feeds):
        try:
            return self.right(output_names, feeds)
        except BackendFailed as error:
            raise RuntimeError("the device is on fire") from error


@backend
class ForgetsTheCause(Flawed):
    def run(self, output_names, feeds):
        try:
            return self.right(output_names, feeds)
        except BackendFailed as error:
            message = str(error)
        raise BackendFailed(message)


class TakesAnyOperator(Right):
    def compile(self, model, config):
        try:
            return super().compile(model, config)
        except IsorunError:
            return _Zeros(model)


class _Zeros(Executable):
    def __init__(self, model):
        self.outputs = model.info.outputs

    def run(self, output_names, feeds):
        return [np.zeros([1 if not isinstance(size, int) else size for size in spec.shape]) for spec in self.outputs]

    def report(self):
        raise BackendFailed("it has nothing to say")


class ForgetsTheCauseOfLoading(Right):
    def compile(self, model, config):
        try:
            return super().compile(model, config)
        except IsorunError as error:
            message = str(error)
        raise InvalidModel(message)


# Life


@backend
class SharesOneBuffer(Flawed):
    """It says that it may be run from many threads, and keeps the answer in one place."""

    capabilities = replace(HONEST, thread_safe=True)

    def run(self, output_names, feeds):
        self.kept = self.right(output_names, feeds)
        time.sleep(0)
        return [np.array(result) for result in self.kept]


@backend
class SharesBetweenSessions(Flawed):
    """One place for the answers of all sessions."""

    last: ClassVar[list[np.ndarray]] = []

    def run(self, output_names, feeds):
        self.last[:] = self.right(output_names, feeds)
        time.sleep(0.002)
        return [np.array(result) for result in self.last]


@backend
class TakesResultsAlong(Flawed):
    """What it gave is gone with the session."""

    given: Any = ()

    def run(self, output_names, feeds):
        results = self.right(output_names, feeds)
        self.given = [*self.given, *results]
        return results

    def close(self):
        for result in self.given:
            result[...] = np.nan


@backend
class DiesAmidRuns(Flawed):
    """Closing pulls the ground from under a run."""

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
        self.path.write_bytes(self.path.read_bytes() + b"\x92\x03\x00")  # a field that no reader knows


@backend
class SetsTheEnvironment(Flawed):
    numbers = itertools.count()

    def __init__(self, model, config):
        super().__init__(model, config)
        os.environ["OMP_NUM_THREADS"] = str(next(self.numbers))


# Claims


@backend
class ComputesInHalf(Flawed):
    """It says fp32, and rounds what it is fed to fp16."""

    def run(self, output_names, feeds):
        rounded = {
            name: array.astype(np.float16).astype(np.float32) if array.dtype == np.float32 else array
            for name, array in feeds.items()
        }
        return self.right(output_names, rounded)


class ReportsAnother(Right):
    def compile(self, model, config):
        return _Reporting(model, config, precision="bf16")


class ReportsSomeInLess(Right):
    def compile(self, model, config):
        return _Reporting(model, config, precision="fp32+int8")


class ClaimsAGpu(Right):
    capabilities = replace(HONEST, devices=("cuda",))

    def compile(self, model, config):
        return _Reporting(model, replace(config, device="cpu"), device="NVIDIA H200")


class GuessesPlacement(Right):
    capabilities = replace(HONEST, reports=())


class _Reporting(Flawed):
    def __init__(self, model, config, **said):
        super().__init__(model, config)
        self.said = said

    def report(self):
        return replace(super().report(), **self.said)


class NamesNoModel(Right):
    capabilities = replace(HONEST, dialects=("primitive",))

    def compile(self, model, config):
        return _Reporting(model, config, details={"of": {1, 2}})


class Honest(Right):
    """None at all."""


def names() -> dict[str, str]:
    """Every backend here, as an entry point names it."""
    mine = [name for name, cls in globals().items() if isinstance(cls, type) and issubclass(cls, Backend)]
    return {name: f"{__name__}:{name}" for name in mine if name not in ("Backend", "Right")}
