"""Changes to what all of a process shares."""

from __future__ import annotations

import os
import signal

import numpy as np

from flaws.base import Flawed, backend


@backend
class SetsTheEnvironment(Flawed):
    def __init__(self, model, config):
        super().__init__(model, config)
        os.environ["OMP_NUM_THREADS"] = "1"


@backend
class SilencesNumpy(Flawed):
    def run(self, output_names, feeds):
        np.seterr(all="ignore")
        return self.right(output_names, feeds)


@backend
class SetsASignalHandler(Flawed):
    def __init__(self, model, config):
        super().__init__(model, config)
        signal.signal(signal.SIGINT, signal.SIG_DFL)


@backend
class PrintsToStdout(Flawed):
    def run(self, output_names, feeds):
        print("running on the accelerator")
        return self.right(output_names, feeds)
