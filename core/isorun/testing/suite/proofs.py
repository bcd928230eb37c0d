"""What ties a check to the capability that it proves."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

_Check = TypeVar("_Check", bound=Callable[..., Any])
_ATTRIBUTE = "proves"


def proves(capability: str) -> Callable[[_Check], _Check]:
    """Mark a check with the capability that it proves.

    Args:
        capability: as the report names it; ``{precision}`` stands for the check's parameter of that name.
    """

    def mark(check: _Check) -> _Check:
        setattr(check, _ATTRIBUTE, capability)
        return check

    return mark


def capability_of(check: Callable[..., Any], parameters: Mapping[str, Any]) -> str:
    """The capability that a check proves, with its parameters filled in."""
    name: str = getattr(check, _ATTRIBUTE, check.__name__)
    return name.format(**parameters)
