"""The version of the contract between isorun and plugins, and the check of the one that a plugin declares.

docs/contract.md has the history. The version is raised by a change that an existing plugin has to know of; what is only
added (an optional field, ability or capability) does not raise it.
"""

from __future__ import annotations

from typing import Any

CONTRACT = 2
"""The version of the contract that this isorun implements: the one to declare as ``Backend.contract``."""

SUPPORTED = (CONTRACT - 1, CONTRACT)
"""The versions that plugins may declare, oldest first."""

UNDECLARED = 1
"""The contract of a plugin that declares none: the first one had no declaration."""


def problem(declared: Any) -> str:
    """Why a plugin cannot be used by its declared contract, in words that follow its name; empty if it can."""
    if isinstance(declared, bool) or not isinstance(declared, int):
        return f"has an attribute `contract` that must be an integer, got {declared!r}"
    if declared in SUPPORTED:
        return ""
    from importlib.metadata import version

    window = " and ".join(map(str, SUPPORTED))
    return f"implements version {declared} of the plugin contract, and isorun {version('isorun')} supports {window}"
