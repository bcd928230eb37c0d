"""What tests over all backends have to tell them apart by."""

from __future__ import annotations

from isorun.plugin import registry

BACKENDS = ("ort-cpu", "openvino", "reference")


def threads(backend: str, count: int) -> int | None:
    """``Session(threads=...)`` for so many threads, or ``None`` for a backend that cannot be told."""
    return count if registry.get(backend).capabilities.sets_threads else None
