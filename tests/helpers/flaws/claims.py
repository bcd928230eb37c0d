"""Reports that are not true."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from flaws.base import HONEST, Flawed, backend
from isorun.testing.fakes import Right


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
