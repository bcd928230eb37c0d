"""JSON files of a model: their size, their depth, and an account of every key.

A table names the keys of a kind of file: those that are used, with what they must be, and those that have no effect
here. Every other key is rejected, since it may change what the model computes.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from isorun.errors import InvalidModel, UnsupportedModel, nearest
from isorun.system import json_files

LIMITS = json_files.Limits(size=16 << 20, values=1_000_000, depth=64, unique=False)
"""Of a JSON file; the largest published ones (``tokenizer_config.json``) have about 1 MiB."""

_LONGEST = 80  # characters of a value in a message


@dataclass(frozen=True)
class Key:
    """A key of a table.

    Attributes:
        accepts: whether a value may be there.
        expected: what must be there, for messages.
        valid: whether other values may be valid, but are not supported.
    """

    accepts: Callable[[Any], bool]
    expected: str
    valid: bool = False


Table = Mapping[str, Key]


def read(path: Path) -> Any:
    """The content of a JSON file.

    Raises:
        InvalidModel: the file cannot be read, is not JSON, or is too large or too deep to be a model's.
    """
    try:
        return json_files.read(path, LIMITS)
    except (OSError, ValueError) as error:
        raise InvalidModel(f"{path} cannot be read: {error}") from error


def parse(text: str, name: str) -> Mapping[str, Any]:
    """The JSON object in a text.

    Raises:
        InvalidModel: it is something else, or is too large or too deep.
    """
    try:
        content = json_files.parse(text, LIMITS)
    except ValueError as error:
        raise InvalidModel(f"{name} is damaged: {error}") from error
    return _object(content, name)


def read_object(path: Path) -> Mapping[str, Any]:
    """A JSON object in a file.

    Raises:
        InvalidModel: the file cannot be read, or holds something else.
    """
    return _object(read(path), str(path))


def _object(content: Any, name: str) -> Mapping[str, Any]:
    if not isinstance(content, dict):
        raise InvalidModel(f"{name} must contain an object, got {type(content).__name__}")
    return content


def read_table(path: Path, table: Table) -> Mapping[str, Any]:
    """A JSON object in a file, with every key accounted for.

    Raises:
        InvalidModel: the file cannot be read, or a value has no meaning.
        UnsupportedModel: a key or value that isorun does not support.
    """
    return check(read_object(path), table, str(path))


def check(fields: Mapping[str, Any], table: Table, name: str) -> Mapping[str, Any]:
    """Check every key of an object.

    Args:
        fields: the object.
        table: its keys.
        name: of the file, for messages.

    Returns:
        ``fields``.

    Raises:
        InvalidModel: a value has no meaning.
        UnsupportedModel: a key or value that isorun does not support.
    """
    for key, value in fields.items():
        if key not in table:
            near = nearest(key, table)
            hint = f" (did you mean {near!r}?)" if near else ""
            raise UnsupportedModel(
                f"{name}: unknown key {shown(key)} with value {shown(value)}{hint}. It may change what the model "
                "computes: remove it if it does not"
            )
    return check_known(fields, table, name)


def check_known(fields: Mapping[str, Any], table: Table, name: str) -> Mapping[str, Any]:
    """As :func:`check`, for a file whose unknown keys have no effect."""
    for key, rule in table.items():
        if key in fields and not rule.accepts(fields[key]):
            kind = UnsupportedModel if rule.valid else InvalidModel
            raise kind(f"{name}: {key} must be {rule.expected}, got {shown(fields[key])}")
    return fields


def shown(value: object) -> str:
    """A value for a message, shortened."""
    text = repr(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def only(*values: object) -> Key:
    """The values for which isorun computes what the library computes; others are not supported."""
    names = " or ".join(json.dumps(value) for value in values)
    return Key(
        lambda candidate: any(type(candidate) is type(value) and candidate == value for value in values), names, True
    )


def optional(key: Key) -> Key:
    """The same, or ``null``."""
    return Key(lambda value: value is None or key.accepts(value), f"{key.expected} or null", key.valid)


def integer(minimum: int, maximum: int) -> Key:
    return Key(
        lambda value: type(value) is int and minimum <= value <= maximum, f"an integer from {minimum} to {maximum}"
    )


SIZE = Key(lambda value: type(value) is int and 0 < value < 2**31, "an integer above 0 and below 2**31")


def number(minimum: float = -math.inf, *, above: bool = False) -> Key:
    """A finite number of at least ``minimum``, or ``above`` it."""

    def accepts(value: Any) -> bool:
        finite = type(value) in (int, float) and abs(value) < 1e300  # an int may be too large for a float
        return finite and (value > minimum if above else value >= minimum)

    bound = f" {'above' if above else 'of at least'} {minimum:g}" if minimum > -math.inf else ""
    return Key(accepts, f"a number{bound}")


def items(kind: type, *, maximum: int = 100_000) -> Key:
    """A list of values of one type."""
    return Key(
        lambda value: isinstance(value, list) and len(value) <= maximum and all(type(item) is kind for item in value),
        f"a list of {kind.__name__}",
    )


def unused(names: str | Iterable[str]) -> dict[str, Key]:
    """Keys, separated by spaces, that have no effect here, whatever their value."""
    return dict.fromkeys(names.split() if isinstance(names, str) else names, ANY)


ANY = Key(lambda _: True, "anything")
"""A key without an effect here, or whose value its reader checks."""
FLAG = Key(lambda value: type(value) is bool, "true or false")
TEXT = Key(lambda value: isinstance(value, str), "a string")
OBJECT = Key(lambda value: isinstance(value, dict), "an object")
TEXTS = Key(
    lambda value: isinstance(value, dict) and all(isinstance(text, str) for text in value.values()),
    "an object of strings",
)
EMPTY = Key(lambda value: value is None or value in ({}, [], "", False), "empty", True)
"""Arguments for the library that isorun does not interpret."""
