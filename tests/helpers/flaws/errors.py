"""Flaws in how errors are raised."""

from contextlib import contextmanager

import numpy as np

from flaws.base import running
from isorun.errors import BackendFailed, InvalidModel, IsorunError
from isorun.plugin.backend import Executable
from isorun_conformance.fakes import Right


@running
def WrapsNoErrors(self, output_names, feeds):
    try:
        return self.right(output_names, feeds)
    except BackendFailed as error:
        raise RuntimeError("the device is on fire") from error


@running
def ForgetsTheCause(self, output_names, feeds):
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
