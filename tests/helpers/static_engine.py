"""A backend whose executables have one shape each: ONNX Runtime on models of fixed shapes, which counts them."""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

import backends
from isorun.plugin import Backend, Capabilities, Executable, StaticShapes, registry

SMALL = StaticShapes(batches=(1, 4), lengths=(8, 16, 32), executables=3)


class StaticEngine(Backend):
    """Refuses models and feeds of any other shape.

    Attributes:
        compiled: the shapes of each compilation.
        alive, most: the number of open executables, and its maximum.
    """

    contract = 2
    capabilities = Capabilities(("static",), static_shapes=SMALL, thread_safe=True, usable_after_failure=True)
    compiled: ClassVar[list[list[tuple[Any, ...]]]]
    alive: ClassVar[int]
    most: ClassVar[int]
    lock = threading.Lock()

    def compile(self, model, config):
        for spec in (*model.info.inputs, *model.info.outputs):
            assert spec.shape is not None, spec
            assert all(isinstance(size, int) for size in spec.shape), spec
        return FixedExecutable(type(self), model, config)


class FixedExecutable(Executable):
    def __init__(self, engine: type[StaticEngine], model, config) -> None:
        self._engine = engine
        self._shapes = {spec.name: spec.shape for spec in model.info.inputs}
        self._run = registry.get("ort-cpu").compile(model, config)
        self._closed = False
        with engine.lock:
            engine.compiled.append(list(self._shapes.values()))
            engine.alive += 1
            engine.most = max(engine.most, engine.alive)

    def run(self, output_names: Sequence[str], feeds) -> list[Any]:
        assert not self._closed
        assert {name: array.shape for name, array in feeds.items()} == {name: self._shapes[name] for name in feeds}
        return self._run.run(output_names, feeds)

    def report(self):
        return self._run.report()

    def close(self) -> None:
        assert not self._closed
        self._closed = True
        self._run.close()
        with self._engine.lock:
            self._engine.alive -= 1


@contextmanager
def registered(static: StaticShapes = SMALL, name: str = "static", **changes: Any) -> Iterator[type[StaticEngine]]:
    """The engine under a name, with other capabilities."""
    offers = {"dialects": ("static",), "thread_safe": True, "usable_after_failure": True, **changes}

    class Engine(StaticEngine):
        capabilities = Capabilities(static_shapes=static, **offers)
        compiled: ClassVar[list[list[tuple[Any, ...]]]] = []
        alive = most = 0

    with backends.registered(**{name: Engine}):
        yield Engine
