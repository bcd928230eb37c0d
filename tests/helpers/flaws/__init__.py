"""Backends with one flaw each: every check of the conformance suite has at least one to catch.

A backend's name is its class's, in lower case with dashes. The modules mirror those in ``isorun_conformance/checks``.
"""

import importlib
import pkgutil
import re

from isorun.plugin.backend import Backend
from isorun_conformance.fakes import Right


class Honest(Right):
    """Without a flaw."""


def names() -> dict[str, str]:
    """Every backend here, as an entry point names it."""
    backends = {named("Honest"): f"{__name__}:Honest"}
    for info in pkgutil.iter_modules(__path__, f"{__name__}."):
        for name, value in vars(importlib.import_module(info.name)).items():
            if isinstance(value, type) and issubclass(value, Backend) and value.__module__ == info.name:
                backends[named(name)] = f"{info.name}:{name}"
    return backends


def named(cls: str) -> str:
    """The name of the backend of a class."""
    return re.sub("(?<!^)(?<!-)([A-Z]+)", r"-\1", cls).lower()
