"""Results that depend on the batch, or on the run."""

from __future__ import annotations

from dataclasses import replace

from flaws.base import HONEST, Flawed, backend


@backend
class RoundsByRun(Flawed):
    """Right, but in the last bit of every other run."""

    capabilities = replace(HONEST, dynamic_shapes=True, repeatable=True)
    runs = 0

    def run(self, output_names, feeds):
        self.runs += 1
        return [result * (1 + self.runs % 2 * 2**-22) for result in self.right(output_names, feeds)]


@backend
class RoundsByBatch(Flawed):
    """Right, but in the last bit, of which each size of batch has another."""

    capabilities = replace(HONEST, dynamic_shapes=True, deterministic=True)

    def run(self, output_names, feeds):
        rows = max(len(array) for array in feeds.values())
        return [result * (1 + rows * 2**-22) for result in self.right(output_names, feeds)]
