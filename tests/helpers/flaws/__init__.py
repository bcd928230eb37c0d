"""Backends with one flaw each, right in everything else: every check of the conformance suite has one to catch.

A backend's name is its class's; a module's name is that of the suite's module whose checks catch what is in it.
"""

from __future__ import annotations

from flaws import calls, claims, devices, discovery, failures, lifetime, numerics, program
from isorun.plugin.backend import Backend
from isorun.testing.fakes import Right


class Honest(Right):
    """None at all."""


def names() -> dict[str, str]:
    """Every backend here, as an entry point names it."""
    found = {"Honest": f"{__name__}:Honest"}
    for module in (discovery, numerics, calls, devices, failures, lifetime, claims, program):
        for name, value in vars(module).items():
            if isinstance(value, type) and issubclass(value, Backend) and value.__module__ == module.__name__:
                found[name] = f"{module.__name__}:{name}"
    return found
