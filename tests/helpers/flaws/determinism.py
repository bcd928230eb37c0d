"""Results that depend on the batch, or on the run."""

from dataclasses import replace

import numpy as np

from flaws.base import HONEST, Flawed, backend
from isorun.plugin.backend import Binding

_MORE = np.float32(1 + 2**-22)


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


@backend
class RoundsByOutputs(Flawed):
    """Right, but in the last bit where some of the outputs are requested."""

    capabilities = replace(HONEST, dynamic_shapes=True, repeatable=True)

    def run(self, output_names, feeds):
        results = self.right(output_names, feeds)
        return results if len(results) == len(self.names) else [result * _MORE for result in results]


class _Rounding(Binding):
    def run(self):
        return [result * _MORE for result in super().run()]


@backend
class RoundsInBindings(Flawed):
    capabilities = replace(HONEST, dynamic_shapes=True, deterministic=True)

    def bind(self, feeds, outputs):
        return _Rounding(self, feeds, outputs)


@backend
class RoundsBesideOthers(Flawed):
    """Right, but in the last bit of a run that begins during another one."""

    capabilities = replace(HONEST, dynamic_shapes=True, repeatable=True, thread_safe=True, usable_after_failure=True)
    running = 0

    def run(self, output_names, feeds):
        factor = _MORE if self.running else np.float32(1)
        self.running += 1
        try:
            return [result * factor for result in self.right(output_names, feeds)]
        finally:
            self.running -= 1


@backend
class RoundsBySession(Flawed):
    """Chooses another kernel each time that it compiles a model, as one that times them may."""

    capabilities = replace(HONEST, dynamic_shapes=True, repeatable=True)
    compiled = 0

    def __init__(self, model, config):
        super().__init__(model, config)
        type(self).compiled += 1
        self.factor = np.float32(1 + self.compiled % 2 * 2**-22)

    def run(self, output_names, feeds):
        return [result * self.factor for result in self.right(output_names, feeds)]
