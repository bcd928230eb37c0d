"""Names of backends: which are valid, and why others are not."""

from __future__ import annotations

import keyword
import re

_NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
_MEMBER = re.compile(r"[A-Za-z0-9_.+-]+")
# `auto` selects a backend; the others are not strings in YAML or JSON, where specs name backends.
RESERVED = frozenset(("auto", "none", "null", "true", "false", "yes", "no", "on", "off"))
_RULE = "Use lower-case letters, digits and single dashes, and begin with a letter"


def problem(name: str) -> str:
    """Why a string is not a valid name of a backend; empty if it is valid."""
    if not _NAME.fullmatch(name):
        return f"{name!r} is not a valid name of a backend. {_RULE}"
    if name.casefold() in RESERVED:
        return f"{name!r} is a reserved word and not a valid name of a backend"
    return ""


def problem_of_new(name: str) -> str:
    """The same for a name that its class and module shall have, too."""
    if keyword.iskeyword(name):
        return f"{name!r} is a keyword of Python and not a valid name of a backend"
    return problem(name)


def is_member(name: object) -> bool:
    """Whether an object is a valid name of a family's member: the part of ``ort-ep:openvino`` after the colon."""
    return isinstance(name, str) and _MEMBER.fullmatch(name) is not None
