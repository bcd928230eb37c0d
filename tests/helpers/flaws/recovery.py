"""Runs that failed ones affect."""

from dataclasses import replace
from pathlib import Path

from flaws.base import HONEST, Flawed, backend
from isorun.errors import BackendFailed


@backend
class KeepsAShapeOfAFailedRun(Flawed):
    """Declares that a failure leaves no trace, but is wrong for the rest of a batch of five."""

    capabilities = replace(HONEST, thread_safe=True, usable_after_failure=True)
    left = 0

    def run(self, output_names, feeds):
        try:
            results = self.right(output_names, feeds)
        except BackendFailed:
            self.left = 2
            raise
        self.left -= 1
        return [result[::-1] * 1.5 for result in results] if self.left > 0 else results


@backend
class TrustsItsCache(Flawed):
    """Reads a file of its cache without asking whether all of it is there."""

    def __init__(self, model, config):
        super().__init__(model, config)
        self.factor = 1.0
        if config.cache_dir is not None:
            engine = Path(config.cache_dir, "engine")
            if not engine.is_file():
                engine.parent.mkdir(parents=True, exist_ok=True)
                engine.write_bytes(bytes(8))
            self.factor = engine.stat().st_size / 8

    def run(self, output_names, feeds):
        return [result * self.factor for result in self.right(output_names, feeds)]
