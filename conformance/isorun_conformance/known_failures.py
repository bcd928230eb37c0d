"""Declared failures of checks: read from a file or a test, and compared with what a check did."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from isorun.errors import InvalidArgument, IsorunError, did_you_mean, nearest
from isorun.system import json_files
from isorun.types.faults import KnownFailure

Declared = Mapping[str, KnownFailure | Mapping[str, str]]
_FIELDS = tuple(field.name for field in fields(KnownFailure))


def read(path: Path) -> dict[str, KnownFailure]:
    """Known failures from a TOML file, or a JSON file by its suffix: a table for each check. Raises ``IsorunError`` if
    the file cannot be read, or a table is invalid."""
    try:
        text = path.read_text(encoding="utf-8-sig")
        tables = json_files.parse(text) if path.suffix == ".json" else tomllib.loads(text)
    except (OSError, ValueError) as error:
        raise IsorunError(f"Cannot read the known failures in {path}: {error}") from error
    return parse(tables, f"{path}: ")


def parse(tables: Any, where: str = "") -> dict[str, KnownFailure]:
    """Known failures by the name of the check, with its parameters or for any.

    Args:
        tables: the fields of each, or a :class:`KnownFailure`.
        where: the start of a message.

    Raises:
        IsorunError: a table is invalid.
    """
    if not isinstance(tables, Mapping):
        raise IsorunError(f"{where}known failures must be a table for each check, got {type(tables).__name__}")
    return {name: _failure(name, table, where) for name, table in tables.items()}


def _failure(name: str, table: Any, where: str) -> KnownFailure:
    what = f"{where}the known failure {name!r}"
    if isinstance(table, KnownFailure):
        return table
    if not isinstance(table, Mapping):
        raise IsorunError(f"{what} must be a table of {', '.join(_FIELDS)}, got {table!r}")
    for key in table:
        if key not in _FIELDS:
            raise IsorunError(f"{what} has an unknown field {key!r}{did_you_mean(key, _FIELDS)}")
    if missing := [field for field in _FIELDS if field not in table]:
        raise IsorunError(f"{what} lacks {' and '.join(map(repr, missing))}")
    try:
        return KnownFailure(**table)
    except InvalidArgument as error:
        raise IsorunError(f"{what}: {error}") from error


def of(check: str, declared: Mapping[str, KnownFailure]) -> KnownFailure | None:
    """The declaration that concerns a check: of its full name, or of its function."""
    return declared.get(check) or declared.get(function(check))


def require_checks(declared: Iterable[str], checks: Iterable[str]) -> None:
    """Raise ``IsorunError`` for a name that is not that of a check, nor of its function; with the nearest."""
    names = {name for full in checks for name in (full, function(full))}
    for name in declared:
        if name not in names:
            near = nearest(name, names)
            hint = f"; did you mean {near!r}?" if near else ""
            raise IsorunError(f"There is no check {name!r}, declared as a known failure{hint}")


def function(check: str) -> str:
    """The name of a check without its parameters."""
    return check.partition("[")[0]


def class_names(error: BaseException) -> tuple[str, ...]:
    """The names of an exception's class and its bases, the narrowest first, without those that every error has."""
    common = set(Exception.__mro__)
    return tuple(cls.__name__ for cls in type(error).__mro__ if cls not in common)


def matcher(exception: str) -> type[BaseException]:
    """A class whose instances are the errors that match a declared exception, for ``pytest.mark.xfail(raises=)``."""

    class Named(type):
        def __instancecheck__(cls, error: Any) -> bool:
            return exception in class_names(error)

    class Matching(Exception, metaclass=Named):
        pass

    return Matching
