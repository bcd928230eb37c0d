"""Reports that are not true."""

from dataclasses import replace
from importlib.metadata import version
from typing import ClassVar

import numpy as np

from flaws.base import HONEST, Flawed, backend, declaring, reading
from isorun_conformance.fakes import Right


def rounded(feeds, where):
    """Feeds of which some have passed through fp16."""
    return {
        name: array.astype(np.float16).astype(np.float32) if where(array) else array for name, array in feeds.items()
    }


ComputesInHalf = reading(lambda feeds: rounded(feeds, lambda array: array.dtype == np.float32))
HalfPrecisionFor64Rows = reading(lambda feeds: rounded(feeds, lambda array: array.shape == (64, 256)))
HalvesLargeProducts = reading(lambda feeds: rounded(feeds, lambda array: array.shape[1:] == (1024,)))
"""All report fp32."""


def reporting(capabilities=HONEST, **report):
    """A backend class that replaces fields of a report."""

    class Reporting(Flawed):
        def report(self):
            return replace(super().report(), **report)

    def compile(self, model, config):
        return Reporting(model, replace(config, device="cpu"))

    return type("Reporting", (Right,), {"__module__": __name__, "capabilities": capabilities, "compile": compile})


ReportsAnother = reporting(precision="bf16")
ReportsALowerPrecisionToo = reporting(precision="fp32+int8")
ClaimsAGpu = reporting(replace(HONEST, devices=("cuda",)), device="NVIDIA H200")
ReportsASet = reporting(details={"of": {1, 2}})
ReportsVersionsInNumbers = reporting(versions={"onnx": (1, 0)})
NamesAnotherVersion = reporting(versions={"onnx": "9.9.9", "the real one": version("onnx")})
ReportsUndeclaredPlacement = declaring(__name__, reports=())
InventsOperators = reporting(operators={"numpy": {"MegaKernel": 1}})
InventsADevice = reporting(operators={"NPU0": {"MatMul": 1, "Softmax": 1, "Transpose": 1}})


@backend
class ReportsRuns(Flawed):
    """A run adds to the report."""

    def run(self, output_names, feeds):
        self.kept = (self.kept or 0) + 1
        return self.right(output_names, feeds)

    def report(self):
        report = super().report()
        return replace(report, versions={**report.versions, "runs": str(self.kept)})


@backend
class ReportsTheLastModel(Flawed):
    """Reports the model that was compiled last."""

    last: ClassVar[list] = []

    def __init__(self, model, config):
        super().__init__(model, config)
        self.last[:] = [super().report]

    def report(self):
        return self.last[0]()


class Spoiled(Flawed):
    def run(self, output_names, feeds):
        return [result * (2 if self.kept else 1) for result in self.right(output_names, feeds)]


@backend
class SpoiledByItsReport(Spoiled):
    """Runs with a profiler from then on."""

    def report(self):
        self.kept = True
        return super().report()


@backend
class SpoiledByTiming(Spoiled):
    def device_times(self, feeds, runs):
        self.kept = True
        return np.full(runs, 1e-3)


@backend
class TimesInSeconds(Flawed):
    def device_times(self, feeds, runs):
        return np.full(runs, 1e-6)


@backend
class TimesOfAnother(Flawed):
    def device_times(self, feeds, runs):
        return np.full(runs, 1e6)
