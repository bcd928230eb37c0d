"""An extension of griffe for the API reference: what docstrings have of reStructuredText, in Markdown.

Roles such as :class:`isorun.Session` become links to the object, or plain code where the reference does not have it.
Two colons before a block of code become one, or none on a line of their own.
"""

from __future__ import annotations

import re
from typing import Any

import griffe

_ROLE = re.compile(r":(?:attr|class|data|func|meth|mod):`~?([\w.]+)`")
_COLONS = re.compile(r"^([ ]*)(.*?)::$", re.MULTILINE)


class Markdown(griffe.Extension):
    """Rewrites the docstrings of every object as it is read."""

    def on_instance(self, *, obj: griffe.Object | griffe.Alias, **_: Any) -> None:
        """Rewrite one docstring."""
        if obj.docstring:
            obj.docstring.value = _markdown(obj.docstring.value, obj)


def _markdown(text: str, obj: griffe.Object | griffe.Alias) -> str:
    def link(match: re.Match[str]) -> str:
        name = match[1]
        owner = obj.path if obj.is_class or obj.is_module else obj.path.rpartition(".")[0]
        target = name if name.startswith("isorun") else f"{owner}.{name}"
        return f'<autoref identifier="{target}" optional><code>{name}</code></autoref>'

    return _COLONS.sub(lambda match: f"{match[1]}{match[2]}:" if match[2] else "", _ROLE.sub(link, text))
