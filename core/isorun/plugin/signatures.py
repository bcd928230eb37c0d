"""Comparison of a plugin's methods with those of the interface that it implements."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any


def problems(implementation: Any, base: type, methods: tuple[str, ...]) -> Iterator[str]:
    """How methods differ from the interface's, so that isorun cannot call them.

    Args:
        implementation: an object, or a class for its class methods.
        methods: their names; those that the implementation lacks are skipped.
    """
    for name in methods:
        method = getattr(implementation, name, None)
        if method is None:
            continue
        if not callable(method):
            yield f"`{name}` must be a method, got {type(method).__name__}"
            continue
        if inspect.iscoroutinefunction(method):
            yield f"`{name}()` must not be a coroutine (async def)"
            continue
        expected = inspect.signature(getattr(base, name))
        # The first parameter of a function of a class is the object; a class method is bound to the class already.
        names = [parameter for parameter in expected.parameters if parameter not in ("self", "cls")]
        try:
            actual = inspect.signature(method)
        except (TypeError, ValueError):  # of a function in C
            continue
        try:
            actual.bind(*names)
        except TypeError:
            yield f"`{name}` must accept ({', '.join(names)}), got {name}{actual}"
