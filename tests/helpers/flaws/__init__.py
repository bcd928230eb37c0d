"""Backends with one flaw each: every check of the conformance suite has at least one to catch.

A backend's name is its class's. The modules mirror those in ``isorun_conformance/checks``.
"""

from __future__ import annotations

import importlib
import pkgutil

from isorun.plugin.backend import Backend
from isorun_conformance.fakes import Right


class Honest(Right):
    """Without a flaw."""


def names() -> dict[str, str]:
    """Every backend here, as an entry point names it."""
    found = {"Honest": f"{__name__}:Honest"}
    for info in pkgutil.iter_modules(__path__, f"{__name__}."):
        for name, value in vars(importlib.import_module(info.name)).items():
            if isinstance(value, type) and issubclass(value, Backend) and value.__module__ == info.name:
                found[name] = f"{info.name}:{name}"
    return found
