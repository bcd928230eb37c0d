"""What backends with a flaw are made from: one without any."""

from dataclasses import replace

from isorun_conformance.fakes import Right, RightExecutable

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


def overriding(base, method):
    """A decorator that makes a backend class of a function, the method of an executable class."""

    def decorate(function):
        return backend(type(function.__name__, (base,), {method: function, "__module__": function.__module__}))

    return decorate


running = overriding(Flawed, "run")


def returning(change):
    """A backend class whose runs return what ``change`` makes of the list of outputs."""

    class Returning(Flawed):
        def run(self, output_names, feeds):
            return change(self.right(output_names, feeds))

    Returning.__module__ = change.__module__
    return backend(Returning)


def reading(change):
    """A backend class whose runs read what ``change`` makes of the feeds."""

    class Reading(Flawed):
        def run(self, output_names, feeds):
            return self.right(output_names, change(feeds))

    Reading.__module__ = change.__module__
    return backend(Reading)


def doing(when, act):
    """A backend that does something when a model is compiled, run, reported or closed."""

    class Doing(Flawed):
        def __init__(self, model, config):
            super().__init__(model, config)
            self.reach("compile")

        def reach(self, moment):
            if moment == when:
                act()

        def run(self, output_names, feeds):
            self.reach("run")
            return self.right(output_names, feeds)

        def report(self):
            self.reach("report")
            return super().report()

        def close(self):
            self.reach("close")
            super().close()

    Doing.__module__ = act.__module__
    return backend(Doing)


def declaring(module, **fields):
    """A backend class without a flaw but in what it declares.

    Args:
        module: the ``__name__`` of the module that it is in.
        fields: of its capabilities.
    """
    return type("Declaring", (Right,), {"__module__": module, "capabilities": replace(HONEST, **fields)})
