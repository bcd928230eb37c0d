"""The version of the contract between isorun and plugins, and the check of the one that a plugin declares.

The version is raised by a change that an existing plugin has to know of; what is only added (an optional field, ability
or capability) does not raise it. See docs/contract.md.
"""

from __future__ import annotations

from typing import Any

CONTRACT = 2
"""The version of the contract that this isorun implements: the one to declare as ``Backend.contract``."""

SUPPORTED = (CONTRACT,)
"""The versions that plugins may declare, oldest first: the current one and the one before it, of which 2 has none."""


def problem(declared: Any) -> str:
    """Why a plugin cannot be used by its declared contract, in words that follow its name; empty if it can."""
    if isinstance(declared, bool) or not isinstance(declared, int):
        return f"must declare an integer `contract`, got {declared!r}"
    if declared in SUPPORTED:
        return ""
    from importlib.metadata import version

    window = " and ".join(map(str, SUPPORTED))
    return f"implements version {declared} of the plugin contract, and isorun {version('isorun')} supports {window}"
