"""Flaws in options."""

from dataclasses import replace

from flaws.accuracy import Scaling
from flaws.base import HONEST, Flawed, backend
from isorun.errors import InvalidFeeds
from isorun.types.options import Option
from isorun_conformance.fakes import Right


class IgnoresAnOption(Right):
    capabilities = replace(HONEST, options={"level": Option("how hard to try", "int", default=1, minimum=0, maximum=3)})

    def compile(self, model, config):
        self.read_options(config.options)
        return super().compile(model, config)


class HonestWithACopyOfItsOptions(Right):
    capabilities = IgnoresAnOption.capabilities

    def compile(self, model, config):
        assert self.read_options(dict(config.options))["level"] in range(4)
        return super().compile(model, config)


class WrongWithAnOption(Right):
    capabilities = replace(HONEST, options={"fast": Option("skip the details", "bool", default=False)})

    def compile(self, model, config):
        return (Scaling if self.read_options(config.options)["fast"] else Flawed)(model, config)


class ConsumesItsOptions(Right):
    capabilities = replace(HONEST, options={"fast": Option("skip the details", "bool", default=False)})

    def compile(self, model, config):
        config.options.pop("fast", None)
        return Flawed(model, config)


class HonestWithoutPadding(Right):
    """With the option, right for batches without padding, and others are refused."""

    capabilities = replace(HONEST, options={"dense": Option("batches without padding only", "bool", default=False)})

    def compile(self, model, config):
        return (_Dense if self.read_options(config.options)["dense"] else Flawed)(model, config)


class _Dense(Flawed):
    def run(self, output_names, feeds):
        if not feeds["attention_mask"].all():
            raise InvalidFeeds("dense=True does not support padding")
        return self.right(output_names, feeds)


class RefusesEveryBatchWithAnOption(Right):
    capabilities = HonestWithoutPadding.capabilities

    def compile(self, model, config):
        return (_RefusesAll if self.read_options(config.options)["dense"] else Flawed)(model, config)


class _RefusesAll(Flawed):
    def run(self, output_names, feeds):
        raise InvalidFeeds("dense=True does not support these feeds")


class WrongAtItsMinimum(Right):
    capabilities = replace(HONEST, options={"rows": Option("of a part of a batch", "int", default=8, minimum=1)})

    def compile(self, model, config):
        return (Scaling if self.read_options(config.options)["rows"] == 1 else Flawed)(model, config)


class ChangesItsDefaults(Right):
    """What one model was configured with is the default of the next."""

    capabilities = replace(
        HONEST,
        options={
            "fast": Option("skip the details", "bool", default=False),
            "hints": Option("for the engine", "mapping", default={"level": 1}),
        },
    )

    def compile(self, model, config):
        self.capabilities.options["hints"].default["level"] += 1
        return Flawed(model, config)


@backend
class HonestOptionOfEncoders(Flawed):
    """Reads its option where a model has attention."""

    capabilities = replace(HONEST, options={"rows": Option("rows of an attention at once", type="int", default=1)})

    def run(self, output_names, feeds):
        if self.fused:
            self._options.get("rows")
        return self.right(output_names, feeds)
