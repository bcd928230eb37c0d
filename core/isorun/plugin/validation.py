"""Validation of what a plugin declares and returns, so that a mistake is an error about that plugin."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, replace
from typing import Any

import numpy as np

from isorun.errors import did_you_mean
from isorun.plugin import signatures
from isorun.plugin.backend import Executable, SupportsBinding, SupportsDeviceArrays, SupportsDeviceTimes
from isorun.system.arguments import is_number
from isorun.types import DEVICES, DIALECTS, PRECISIONS, REPORTS, Capabilities, Dialect, RuntimeReport, StaticShapes
from isorun.types.options import TYPES, Option

_ANY_DEVICE = "any"
_METHODS: tuple[tuple[type, tuple[str, ...]], ...] = (
    (Executable, ("run", "report", "close")),
    (SupportsBinding, ("bind",)),
    (SupportsDeviceArrays, ("run_on_device",)),
    (SupportsDeviceTimes, ("device_times",)),
)


def problems(capabilities: Any) -> Iterator[str]:
    """What is wrong with a backend's ``capabilities``."""
    if not isinstance(capabilities, Capabilities):
        yield f"`capabilities` must be an isorun.plugin.Capabilities, got {type(capabilities).__name__}"
        return
    for field, (accepts, expected) in _FIELDS.items():
        if not accepts(getattr(capabilities, field)):
            yield f"`capabilities.{field}` must be {expected}, got {getattr(capabilities, field)!r}"
            return  # the checks below rely on the types
    yield from _dialects(capabilities.dialects)
    yield from _known("precisions", capabilities.precisions, PRECISIONS)
    yield from _known("typed", capabilities.typed, capabilities.precisions)
    yield from _known("devices", capabilities.devices, (*DEVICES, _ANY_DEVICE))
    yield from _known("unverified", capabilities.unverified, capabilities.devices)
    yield from _known("reports", capabilities.reports, REPORTS)
    yield from _known("tolerances", capabilities.tolerances, capabilities.precisions)
    yield from _known("tolerances", tuple(capabilities.tolerances.values()), PRECISIONS)
    for key, option in capabilities.options.items():
        yield from _option(key, option)
    if capabilities.sets_threads and capabilities.fixed_threads is not None:
        yield "`capabilities.fixed_threads` is for a runtime that cannot change it, and contradicts sets_threads"
    if capabilities.static_shapes is not None:
        yield from _static_shapes(capabilities.static_shapes)
        if capabilities.device_arrays:
            yield "`capabilities.device_arrays` has no effect with static_shapes, whose feeds are padded in host memory"


def executable_problem(executable: Any) -> str:
    """What is wrong with what ``compile()`` returned, in words that follow "must return"; empty if nothing is."""
    if not isinstance(executable, Executable):
        return f"an isorun.plugin.Executable, got {type(executable).__name__}"
    for base, methods in _METHODS:
        for problem in signatures.problems(executable, base, methods):
            return f"an executable with valid methods: {problem}"
    return ""


def report_problem(report: Any) -> str:
    """What is wrong with what ``report()`` returned, in words that follow "must return"; empty if nothing is."""
    if not isinstance(report, RuntimeReport):
        return f"an isorun.plugin.RuntimeReport, got {type(report).__name__}"
    for field, (accepts, expected) in _REPORT.items():
        if not accepts(getattr(report, field)):
            return f"a RuntimeReport whose `{field}` is {expected}, got {getattr(report, field)!r:.200}"
    return ""


def _dialects(dialects: tuple[str, ...]) -> Iterator[str]:
    for dialect in dialects:
        base, known = (dialect.base, DIALECTS[:-1]) if isinstance(dialect, Dialect) else (dialect, DIALECTS)
        if base not in known:
            yield f"`capabilities.dialects`: unknown dialect {base!r}{did_you_mean(base, known)}"
        elif isinstance(dialect, Dialect) and dialect in DIALECTS:
            yield f"`capabilities.dialects`: the name {str(dialect)!r} belongs to a dialect of isorun. Choose another"


def _known(field: str, values: Any, known: Any) -> Iterator[str]:
    for value in values:
        if value not in known:
            yield f"`capabilities.{field}`: unknown value {value!r}{did_you_mean(value, known)}"


def _option(key: Any, option: Any) -> Iterator[str]:
    if not isinstance(key, str) or not key:
        yield f"`capabilities.options`: a key must be a name, got {key!r}"
    elif not isinstance(option, Option | str):
        yield f"`capabilities.options`: {key!r} must be an isorun.plugin.Option, got {type(option).__name__}"
    elif isinstance(option, Option) and (problem := _option_problem(option)):
        yield f"`capabilities.options`: {key!r} {problem}"


def _option_problem(option: Option) -> str | None:
    """What is wrong with an option, in words that follow its name."""
    low, high = option.minimum, option.maximum
    choices: object = option.choices
    if option.type not in TYPES:
        return f"has an unknown type {option.type!r}{did_you_mean(option.type, TYPES)}"
    if not isinstance(choices, list | tuple):
        return f"must have a tuple of choices, got {choices!r}"
    if not all(limit is None or _integer(limit) for limit in (low, high)):
        return f"must have integers as its limits, got {low!r} and {high!r}"
    if option.type != "int" and (low is not None or high is not None):
        return f"has a minimum or maximum, which only the type 'int' can have, got {option.type!r}"
    if low is not None and high is not None and low > high:
        return f"has a minimum of {low} above its maximum of {high}"
    of_type = replace(option, choices=())
    values = [*(("choice", choice, of_type) for choice in choices), ("default", option.default, option)]
    for what, value, declared in values:
        if value is not None and (why := declared.problem(value)):
            return f"has an invalid {what}: it {why}"
    return None


def _static_shapes(static: StaticShapes) -> Iterator[str]:
    for field, maximum in (("batches", "max_batch"), ("lengths", "max_length")):
        sizes, limit = getattr(static, field), getattr(static, maximum)
        if not (isinstance(sizes, tuple) and sizes and all(_positive(size) for size in sizes)):
            yield f"`capabilities.static_shapes.{field}` must be a tuple of at least one integer above 0, got {sizes!r}"
        elif list(sizes) != sorted(set(sizes)):
            yield f"`capabilities.static_shapes.{field}` must be in ascending order, got {sizes!r}"
        elif _positive(limit) and limit < sizes[-1]:
            yield f"`capabilities.static_shapes.{maximum}` must be at least {sizes[-1]}, as in {field}, got {limit}"
    for field in ("max_batch", "max_length", "memory"):
        if not _optional(_positive)(value := getattr(static, field)):
            yield f"`capabilities.static_shapes.{field}` must be an integer above 0, or None, got {value!r}"
    if not _positive(static.executables):
        yield f"`capabilities.static_shapes.executables` must be an integer above 0, got {static.executables!r}"


_Accepts = Callable[[Any], bool]


def _text(value: Any) -> bool:
    return isinstance(value, str)


def _flag(value: Any) -> bool:
    return isinstance(value, bool)


def _integer(value: Any) -> bool:
    return is_number(value, int)


def _positive(value: Any) -> bool:
    return _integer(value) and value >= 1


def _count(value: Any) -> bool:
    return _integer(value) and value >= 0


def _strings(value: Any) -> bool:
    return isinstance(value, tuple) and all(map(_text, value))


def _some(value: Any) -> bool:
    return _strings(value) and bool(value)


def _optional(accepts: _Accepts) -> _Accepts:
    return lambda value: value is None or accepts(value)


def _mapping(accepts: _Accepts) -> _Accepts:
    """Of strings to what is accepted."""
    return lambda value: isinstance(value, Mapping) and all(_text(key) and accepts(item) for key, item in value.items())


def _plain(value: Any) -> bool:
    """Whether JSON can hold a value, as reports and the results of a matrix do; numbers may be NumPy's."""
    value = value.item() if isinstance(value, np.generic) else value
    if isinstance(value, Mapping):
        return all(_text(key) and _plain(item) for key, item in value.items())
    if isinstance(value, list | tuple):
        return all(map(_plain, value))
    return value is None or type(value) in (bool, int, str) or (type(value) is float and math.isfinite(value))


def _computed(value: Any) -> bool:
    return _text(value) and set(value.split("+")) <= {*PRECISIONS, ""}


_Check = tuple[_Accepts, str]
_FLAG: _Check = (_flag, "True or False")
_FIELDS: dict[str, _Check] = {
    **{field.name: _FLAG for field in fields(Capabilities) if field.type == "bool"},
    "dialects": (_some, "a tuple of at least one dialect"),
    "precisions": (_some, "a tuple of at least one precision"),
    "typed": (_strings, "a tuple of precisions"),
    "refused": (_mapping(_text), "a mapping of precisions to reasons"),
    "devices": (_some, "a tuple of at least one device"),
    "unverified": (_strings, "a tuple of devices"),
    "options": (lambda value: isinstance(value, Mapping), "a mapping of names to isorun.plugin.Option"),
    "faults": (_text, "the place of an isorun.plugin.KnownFaults, or ''"),
    "package": (_optional(_text), "the name of a package, or None"),
    "requirement": (_optional(_text), "a requirement, or None"),
    "reports": (_strings, "a tuple of strings"),
    "priority": (_optional(_integer), "an integer or None"),
    "fixed_threads": (_optional(_positive), "a number of threads, or None"),
    "static_shapes": (lambda value: value is None or isinstance(value, StaticShapes), "an isorun.plugin.StaticShapes"),
    "tolerances": (_mapping(_text), "a mapping of precisions to precisions"),
}
_REPORT: dict[str, _Check] = {
    "device": (_text, "a string"),
    "precision": (_computed, f"one of {', '.join(PRECISIONS)}, or several joined by +"),
    "operators": (_mapping(_mapping(_count)), "a mapping of devices to the number of each operator"),
    "versions": (_mapping(_text), "a mapping of packages to versions"),
    "details": (_mapping(_plain), "a mapping of names to plain data"),
}
