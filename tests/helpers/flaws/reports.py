"""Reports that are not true."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from flaws.base import HONEST, Flawed, backend, declaring
from isorun.testing.fakes import Right


@backend
class ComputesInHalf(Flawed):
    """Reports fp32, but rounds its feeds to fp16."""

    def run(self, output_names, feeds):
        rounded = {
            name: array.astype(np.float16).astype(np.float32) if array.dtype == np.float32 else array
            for name, array in feeds.items()
        }
        return self.right(output_names, rounded)


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
ReportsUndeclaredPlacement = declaring(__name__, reports=())
