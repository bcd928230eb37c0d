"""Flaws in what a backend declares, and in its availability()."""

import itertools
import time
import warnings
from dataclasses import replace

from flaws.base import HONEST, declaring
from isorun.errors import BackendUnavailable
from isorun.types import Availability
from isorun_conformance.fakes import Right, RightExecutable

UnknownDialect = declaring(__name__, dialects=("primitve",))
OneDeviceTwice = declaring(__name__, devices=("cpu", "cpu"))
HonestInNumpy = declaring(__name__, package="numpy", requirement="numpy")
UndescribedOption = declaring(__name__, options={"knob": ""})


class OtherName(Right):
    def __init__(self, name):
        super().__init__("another")


def available(answer):
    """A backend class with that answer to whether it is available."""
    return type("Available", (Right,), {"__module__": __name__, "availability": lambda self: answer})


AlwaysAvailable = available(Availability(ok=True))
NoRemedy = available(Availability(ok=False, reason="it is Monday"))
SaysTrue = available(True)


class ChangesItsMind(Right):
    """Unavailable when first asked, available from then on."""

    asked = itertools.count()

    def availability(self):
        return Availability(ok=next(self.asked) > 0, reason="it sleeps", remedy="Wake it.")


class Rude(Right):
    def availability(self):
        raise OSError("the driver is upset")


class CompilesNothing(Right):
    def compile(self, model, config):
        return None


class FailsWithoutMessage(Right):
    def compile(self, model, config):
        assert config.precision == "fp64"
        return super().compile(model, config)


class ImportsAtTheTop(Right):
    def installed(self):
        import onnx  # noqa: F401

        return super().installed()


class NeverComputes(Right):
    def compile(self, model, config):
        raise BackendUnavailable(self.name, "it has no device", "Buy one.")


class SlowToAnswer(Right):
    def installed(self):
        time.sleep(1.5)
        return super().installed()


class SlowToLoad(Right):
    def __init__(self, name):
        time.sleep(2.5)
        super().__init__(name)


class WarnsWhenLoaded(Right):
    def __init__(self, name):
        warnings.warn("the engine is old", stacklevel=1)
        super().__init__(name)


class ChangingCapabilities(Right):
    read = itertools.count()

    @property
    def capabilities(self):
        return replace(HONEST, precisions=("fp32", "bf16")[: 1 + next(self.read) % 2])


class LiesAboutItsVersion(Right):
    def version(self):
        return "9.9"


class DiagnosesInText(Right):
    def diagnose(self):
        return ["the driver is old"]


class RunsWithoutNames(Right):
    def compile(self, model, config):
        return WithoutNames(model, config)


class WithoutNames(RightExecutable):
    def run(self, feeds):
        return super().run([], feeds)
