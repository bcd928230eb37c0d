"""Flaws in what a backend declares, and in its availability()."""

from __future__ import annotations

import itertools

from flaws.base import declaring
from isorun.errors import BackendUnavailable
from isorun.types import Availability
from isorun_conformance.fakes import Right

UnknownDialect = declaring(__name__, dialects=("primitve",))
OneDeviceTwice = declaring(__name__, devices=("cpu", "cpu"))
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
