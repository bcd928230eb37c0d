"""Releasing what was opened, if the rest of an opening fails."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol


class Closeable(Protocol):
    """What is released by ``close()``."""

    def close(self) -> None: ...


@contextmanager
def closed_on_error(resource: Closeable) -> Iterator[None]:
    """Close a resource if the block raises."""
    try:
        yield
    except BaseException:
        resource.close()
        raise
