"""What is wrong with what a backend says of itself."""

from __future__ import annotations

import itertools
from dataclasses import replace

from flaws.base import HONEST
from isorun.errors import BackendUnavailable
from isorun.testing.fakes import Right
from isorun.types import Availability


class DialectsAreAString(Right):
    capabilities = replace(HONEST, dialects="primitive")


class UnknownDialect(Right):
    capabilities = replace(HONEST, dialects=("primitve",))


class UnknownReport(Right):
    capabilities = replace(HONEST, reports=("placement", "temperature"))


class NoDevice(Right):
    capabilities = replace(HONEST, devices=())


class BareOption(Right):
    capabilities = replace(HONEST, options={"knob": ""})


class OtherName(Right):
    def __init__(self, name):
        super().__init__("another")


class AlwaysHere(Right):
    def availability(self):
        return Availability(ok=True)


class Fickle(Right):
    """It says no, and yes when asked again."""

    asked = itertools.count()

    def availability(self):
        return Availability(ok=next(self.asked) > 0, reason="it sleeps", remedy="Wake it.")


class NoRemedy(Right):
    def availability(self):
        return Availability(ok=False, reason="it is Monday")


class Rude(Right):
    def availability(self):
        raise OSError("the driver is upset")


class SaysTrue(Right):
    def availability(self):
        return True


class CompilesNothing(Right):
    def compile(self, model, config):
        return None


class FailsWithoutAWord(Right):
    def compile(self, model, config):
        assert config.precision == "fp64"
        return super().compile(model, config)


class ImportsAtTheTop(Right):
    def availability(self):
        import onnx  # noqa: F401

        return super().availability()


class NeverComputes(Right):
    def compile(self, model, config):
        raise BackendUnavailable(self.name, "it has no device", "Buy one.")
