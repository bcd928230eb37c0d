"""What is computed once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


class Once:
    """Keeps what layers share, by what it is made of."""

    def __init__(self) -> None:
        self._known: dict[object, Any] = {}

    def __call__(self, key: object, make: Callable[[], T]) -> T:
        if key not in self._known:
            self._known[key] = make()
        known: T = self._known[key]
        return known
