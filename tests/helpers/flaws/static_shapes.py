"""Flaws of backends that compile one shape at a time."""

from dataclasses import replace

import numpy as np

from flaws.base import HONEST, Flawed, backend
from flaws.lifetime import LEAKED
from isorun.plugin import StaticShapes

STATIC = replace(HONEST, static_shapes=StaticShapes(executables=2))


FIRST: dict[str, Flawed] = {}


@backend
class SharesOneExecutable(Flawed):
    """Runs all shapes of a model in the one that it has seen first, as a cache by fingerprint does."""

    capabilities = STATIC

    def __init__(self, model, config):
        super().__init__(model, config)
        self.shape = model.info.inputs[0].shape
        self.first = FIRST.setdefault(model.fingerprint, self)

    def run(self, output_names, feeds):
        resized = {name: np.resize(array, self.first.shape) for name, array in feeds.items()}
        return self.first.right(output_names, resized)


@backend
class IgnoresTheMask(Flawed):
    """Takes every position for a token, as an engine of one shape for which no mask was compiled."""

    capabilities = STATIC

    def run(self, output_names, feeds):
        masks = {name: np.ones_like(array) for name, array in feeds.items() if name == "attention_mask"}
        return self.right(output_names, {**feeds, **masks})


@backend
class KeepsClosedExecutables(Flawed):
    """Keeps the weights of everything that it has compiled."""

    capabilities = STATIC

    def __init__(self, model, config):
        super().__init__(model, config)
        LEAKED.append(np.ones(2**18, np.float32))
