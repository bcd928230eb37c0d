"""What a backend with a flaw is made from: one that has none."""

from __future__ import annotations

from isorun.testing.fakes import Right, RightExecutable

HONEST = Right.capabilities


class Flawed(RightExecutable):
    """What most flaws need to know."""

    def __init__(self, model, config):
        super().__init__(model, config)
        self.path = model.path
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
