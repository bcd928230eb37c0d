"""What backends with a flaw are made from: one without any."""

from __future__ import annotations

from dataclasses import replace

from isorun.testing.fakes import Right, RightExecutable

HONEST = Right.capabilities


class Flawed(RightExecutable):
    """What most flaws need to know."""

    def __init__(self, model, config):
        super().__init__(model, config)
        self.path = model.path
        self.inputs = [spec.name for spec in model.info.inputs]
        self.names = [spec.name for spec in model.info.outputs]
        self.fused = model.info.fused
        self.kept = None

    def right(self, output_names, feeds):
        return super().run(output_names, feeds)


def backend(cls):
    """A backend class around an executable class."""

    class Made(Right):
        capabilities = getattr(cls, "capabilities", HONEST)

        def compile(self, model, config):
            return cls(model, config)

    Made.__name__ = Made.__qualname__ = cls.__name__
    Made.__module__ = cls.__module__
    return Made


def declaring(module, **fields):
    """A backend class without a flaw but in what it declares.

    Args:
        module: the ``__name__`` of the module that it is in.
        fields: of its capabilities.
    """
    return type("Declaring", (Right,), {"__module__": module, "capabilities": replace(HONEST, **fields)})
