"""Flaws in how errors are raised."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace

import numpy as np

from flaws.base import HONEST, Flawed, backend
from isorun.errors import BackendFailed, InvalidModel, IsorunError
from isorun.plugin.backend import Executable
from isorun.testing.fakes import Right


class ClaimsToCheckIndices(Right):
    capabilities = replace(HONEST, checks_indices=True)

    def compile(self, model, config):
        return _Clipping(model, config)


class _Clipping(Flawed):
    """Returns numbers for an index outside the vocabulary, as runtimes do that do not check."""

    def run(self, output_names, feeds):
        if "input_ids" in feeds:
            feeds = {**feeds, "input_ids": np.clip(feeds["input_ids"], 0, 98)}
        return self.right(output_names, feeds)


@backend
class SpoiledByBadFeeds(Flawed):
    """Wrong after a run has failed."""

    spoiled = False
    capabilities = replace(HONEST, checks_indices=True)

    def run(self, output_names, feeds):
        if "input_ids" in feeds and not ((feeds["input_ids"] >= 0) & (feeds["input_ids"] < 99)).all():
            self.spoiled = True
            raise BackendFailed("an index is outside") from IndexError("99")
        results = self.right(output_names, feeds)
        return [result * 2 for result in results] if self.spoiled else results


@backend
class WrapsNoErrors(Flawed):
    def run(self, output_names, feeds):
        try:
            return self.right(output_names, feeds)
        except BackendFailed as error:
            raise RuntimeError("the device is on fire") from error


@backend
class ForgetsTheCause(Flawed):
    def run(self, output_names, feeds):
        with _forgotten_cause(BackendFailed):
            return self.right(output_names, feeds)


class ForgetsTheCauseOnLoading(Right):
    def compile(self, model, config):
        with _forgotten_cause(InvalidModel):
            return super().compile(model, config)


@contextmanager
def _forgotten_cause(kind):
    try:
        yield
    except IsorunError as error:
        message = str(error)
    else:
        return
    raise kind(message)


class AcceptsAnyOperator(Right):
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
