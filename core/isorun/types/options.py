"""The options of a backend (``Session(options=...)``): how they are declared, and the one place that validates them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from isorun.errors import InvalidOption, did_you_mean, nearest

TYPES: dict[str, tuple[tuple[type, ...], str]] = {
    "any": ((object,), "a value"),
    "bool": ((bool,), "true or false"),
    "int": ((int,), "an integer"),
    "list": ((Sequence,), "a list"),
    "mapping": ((Mapping,), "a mapping"),
    "path": ((str, os.PathLike), "a path"),
    "str": ((str,), "a string"),
}
"""The types of options: the Python types that a value may have, and what it is in words."""


@dataclass(frozen=True)
class Option:
    """One key of ``Session(options=...)``.

    Attributes:
        help: what the option does, in one line.
        type: ``any``, ``bool``, ``int``, ``list``, ``mapping``, ``path`` or ``str``.
        choices: the only valid values; empty if any value of the type is valid.
        default: the value of an option that is omitted; ``None`` for "not set".
        minimum, maximum: the range of an ``int``; ``None`` for no limit.
    """

    help: str
    type: str = "any"
    choices: tuple[Any, ...] = ()
    default: Any = None
    minimum: int | None = None
    maximum: int | None = None

    @classmethod
    def of(cls, declared: Option | str | Mapping[str, Any]) -> Option:
        """An option from its declaration: a help text alone, or the fields of an option as plain data."""
        if isinstance(declared, Option):
            return declared
        if isinstance(declared, str):
            return cls(declared)
        return cls(**{**declared, "choices": tuple(declared.get("choices", ()))})

    def expected(self) -> str:
        """The valid values in words."""
        if self.choices:
            return f"one of {', '.join(map(repr, self.choices))}"
        what = TYPES[self.type][1]
        if self.minimum is not None and self.maximum is not None:
            return f"{what} from {self.minimum} to {self.maximum}"
        if self.minimum is not None:
            return f"{what} of at least {self.minimum}"
        return what if self.maximum is None else f"{what} of at most {self.maximum}"

    def problem(self, value: Any) -> str | None:
        """Why a value is invalid; ``None`` for a valid value."""
        if (value is None and self.default is None) or self._accepts(value):
            return None
        names = [choice for choice in self.choices if isinstance(choice, str)]
        near = nearest(value, names) if isinstance(value, str) else None
        return f"must be {self.expected()}, got {value!r}" + (f"; did you mean {near!r}?" if near else "")

    def _accepts(self, value: Any) -> bool:
        if self.choices:
            return any(_alike(choice, value) for choice in self.choices)
        if self.type == "int":
            if not isinstance(value, int) or isinstance(value, bool):
                return False
            return (self.minimum is None or value >= self.minimum) and (self.maximum is None or value <= self.maximum)
        if self.type == "list" and isinstance(value, str | bytes):
            return False
        return isinstance(value, TYPES[self.type][0])

    def value(self, value: Any) -> Any:
        """A valid value as it is declared: a choice that is a tuple reaches an environment as a list."""
        return next((choice for choice in self.choices if _alike(choice, value)), value)


def _alike(choice: Any, value: Any) -> bool:
    """Whether a value is a choice: equal, of its type, and no boolean for a number; lists and tuples are the same."""
    if isinstance(choice, list | tuple):
        return isinstance(value, list | tuple) and len(choice) == len(value) and all(map(_alike, choice, value))
    same_kind = isinstance(value, type(choice)) and isinstance(value, bool) == isinstance(choice, bool)
    return same_kind and bool(value == choice)


def problems(declared: Mapping[str, Option | str], options: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The key of each invalid option, and what is wrong with it."""
    for key, value in options.items():
        if key not in declared:
            yield key, f"unknown option {key!r}{did_you_mean(key, declared)}"
        elif problem := Option.of(declared[key]).problem(value):
            yield key, f"option {key!r} {problem}"


def read(backend: str, declared: Mapping[str, Option | str], options: Mapping[str, Any]) -> dict[str, Any]:
    """The value of every declared option, with defaults for those that are omitted.

    Args:
        backend: the backend's name, for errors.
        declared: ``Capabilities.options``.
        options: what the caller passed.

    Raises:
        InvalidOption: a key is not declared, or its value is invalid.
    """
    options = {key: plain(value) for key, value in options.items()}
    for key, problem in problems(declared, options):
        raise InvalidOption(backend, key, problem)
    known = {key: Option.of(option) for key, option in declared.items()}
    return {key: plain(option.value(options.get(key, option.default))) for key, option in known.items()}


def plain(value: Any) -> Any:
    """A value with NumPy's scalars as Python's, also in its dicts, lists and tuples, which are copied.

    A plugin may change what it gets: neither the caller's value nor a declared default.
    """
    if isinstance(value, np.bool_ | np.number | np.str_):
        return value.item()
    if type(value) is dict:
        return {key: plain(item) for key, item in value.items()}
    return type(value)(map(plain, value)) if type(value) in (list, tuple) else value
