"""Checks of arguments: one that cannot be used is an error that names it, before any work is done."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from numbers import Integral, Real
from typing import Any

from isorun.errors import InvalidArgument, InvalidType, did_you_mean
from isorun.types.options import plain

_LONE_SURROGATE = re.compile("[\ud800-\udfff]")


def check_count(value: Any, name: str, least: int = 1, *, optional: bool = False) -> Any:
    """Reject what is no whole number of at least ``least``, nor ``None`` where that is allowed.

    Returns:
        The number, as an ``int`` if it is a NumPy scalar: with those of few bits, arithmetic overflows.

    Raises:
        InvalidArgument: it is something else.
    """
    if not (optional and value is None) and not (is_number(value, Integral) and value >= least):
        raise number_error(value)(f"{name} must be a whole number of at least {least}, got {value!r}")
    return plain(value)


def check_seconds(value: Any, name: str, *, optional: bool = False) -> Any:
    """Reject what is no number of at least 0, nor ``None`` where that is allowed.

    Returns:
        The number, as a ``float`` or ``int`` if it is a NumPy scalar.

    Raises:
        InvalidArgument: it is something else.
    """
    if not (optional and value is None) and not (is_number(value) and value >= 0):
        raise number_error(value)(f"{name} must be a number of seconds of at least 0, got {value!r}")
    return plain(value)


def number_error(value: Any) -> type[InvalidArgument]:
    """The error for a value that should be another number: of the type, if it is no number at all."""
    return InvalidArgument if is_number(value) else InvalidType


def check_flag(value: Any, name: str, *, optional: bool = False) -> Any:
    """Reject what is neither ``True`` nor ``False``, nor ``None`` where that is allowed: 0 is not ``False``.

    Returns:
        The flag, as a ``bool`` if it is one of NumPy's.

    Raises:
        InvalidType: it is something else.
    """
    if not (optional and value is None) and not isinstance(plain(value), bool):
        raise InvalidType(f"{name} must be True{', False or None' if optional else ' or False'}, got {value!r}")
    return plain(value)


def check_text(value: Any, name: str, *, optional: bool = False) -> None:
    """Raise ``InvalidType`` for what is no text, nor ``None`` where that is allowed."""
    if not (optional and value is None) and not isinstance(value, str):
        raise InvalidType(f"{name} must be a str{' or None' if optional else ''}, got {value!r}")


def check_choice(value: Any, name: str, choices: Iterable[str]) -> None:
    """Reject what is not one of the choices.

    Raises:
        InvalidType: it is no text.
        InvalidArgument: it is another text.
    """
    check_text(value, name)
    if value not in choices:
        raise InvalidArgument(f"Invalid {name} {value!r}{did_you_mean(value, choices)}")


def check_path(value: Any, name: str) -> None:
    """Raise ``InvalidType`` for what is no path, or an empty one, which would be the current folder."""
    if not isinstance(value, str | os.PathLike) or not os.fspath(value) or "\0" in str(value):
        raise InvalidType(f"{name} must be a path, got {value!r}")


def check_items(value: Any, name: str, items: str) -> None:
    """Raise ``InvalidType`` for what is no collection or iterator of items: a text or a mapping is one item."""
    if isinstance(value, str | bytes | Mapping):
        raise InvalidType(f"{name} must be a list of {items}, got a single {type(value).__name__}. Put it in a list")
    if not _has_items(value):
        raise InvalidType(f"{name} must be a list of {items}, got {value!r}")


def check_list(value: Any, name: str, items: str) -> None:
    """As :func:`check_items`, also for what has no length."""
    check_items(value, name, items)
    if not isinstance(value, Sequence):
        raise InvalidType(f"{name} must be a list of {items}, got {type(value).__name__}. Make a list of it")


def checked_strings(value: Any, name: str) -> list[str]:
    """The texts of an argument.

    Raises:
        InvalidType: it is no list of texts.
        InvalidArgument: one of them is not valid Unicode.
    """
    items = None if isinstance(value, str | bytes) or not _has_items(value) else [*value]
    if items is None or not all(isinstance(item, str) for item in items):
        raise InvalidType(f"{name} must be a list of texts, got {value!r}")
    for item in items:
        if not is_unicode(item):
            raise InvalidArgument(f"{name} has {item!r}, which is not valid Unicode")
    return [str(item) for item in items]


def is_unicode(text: str) -> bool:
    """Whether a text is valid Unicode: one that was decoded from invalid UTF-8 may have lone surrogates."""
    return text.isascii() or _LONE_SURROGATE.search(text) is None


def _has_items(value: Any) -> bool:
    return isinstance(value, Iterable) and getattr(value, "ndim", None) != 0  # an array of one value is not iterable


def is_number(value: Any, kind: type = Real) -> bool:
    """Whether it is a number of that kind, which a truth value is not."""
    return isinstance(value, kind) and not isinstance(value, bool)
