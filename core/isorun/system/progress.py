"""Log lines of the logger ``isorun`` for what takes long."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager

_logger = logging.getLogger("isorun")


@contextmanager
def logged(message: str, *arguments: object) -> Iterator[None]:
    """Log a message at INFO when the block is done, with its seconds."""
    start = time.perf_counter()
    yield
    _logger.info(message + " in %.2f s", *arguments, time.perf_counter() - start)
