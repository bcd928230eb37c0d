"""Wrong answers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from flaws.base import HONEST, Flawed, backend
from isorun.errors import BackendFailed, BackendUnavailable
from isorun.testing.fakes import Right


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
class TakesQueriesForKeys(Flawed):
    """Wrong where an attention has fewer queries than keys."""

    def run(self, output_names, feeds):
        wrong = 1.5 if "SingleQueryAttention" in self.fused else 1
        return [result * wrong for result in self.right(output_names, feeds)]


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
