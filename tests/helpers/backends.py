"""What tests over all backends have to tell them apart by."""

from collections.abc import Iterator
from contextlib import contextmanager

from isorun.plugin import registry
from isorun.plugin.backend import Backend

BACKENDS = ("ort-cpu", "openvino", "reference")


def threads(backend: str, count: int) -> int | None:
    """``Session(threads=...)`` for so many threads, or ``None`` for a backend that cannot be told."""
    return count if registry.get(backend).capabilities.sets_threads else None


@contextmanager
def registered(**backends: type[Backend]) -> Iterator[None]:
    """Register backends in this process."""
    for name, backend in backends.items():
        registry.register(name, backend)
    try:
        yield
    finally:
        for name in backends:
            registry.unregister(name)
