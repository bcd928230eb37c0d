"""The sizes of a model's symbolic dimensions: an engine is built for one shape, so each needs one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from isorun.errors import BackendUnavailable, did_you_mean
from isorun.types import ModelInfo

OPTION = "dimensions"


def sizes(name: str, info: ModelInfo, given: Any) -> dict[str, int]:
    """A size for each symbolic dimension of a model's inputs.

    Args:
        name: the backend's.
        info: the model.
        given: the option, such as ``{"batch": 1, "sequence": 128}``; ``None`` for a model of fixed shapes.

    Raises:
        BackendUnavailable: a dimension has no size, or no name to give it one by; or there is none of that name; or a
            size is none that the model takes.
    """
    wanted = _symbols(name, info)
    if given is not None and not isinstance(given, Mapping):
        raise BackendUnavailable(name, f"{OPTION} is {given!r}", _remedy(wanted))
    found = dict(given or {})
    for key, size in found.items():
        if key not in wanted:
            raise BackendUnavailable(
                name,
                f"the model has no symbolic dimension {key!r}{did_you_mean(str(key), wanted)}",
                _remedy(wanted) if wanted else "Leave it out: the model's shapes are fixed.",
            )
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise BackendUnavailable(name, f"the size of {key!r} is {size!r}", "Give a whole number above 0.")
        limit = info.limits.get(key)
        if limit is not None and size > limit:
            raise BackendUnavailable(name, f"{key} goes up to {limit} in this model, not to {size}", "Ask for less.")
    if missing := [each for each in wanted if each not in found]:
        raise BackendUnavailable(
            name,
            f"it builds an engine for one shape, and the model leaves open the dimension {' and '.join(missing)}",
            _remedy(wanted),
        )
    return found


def shape(declared: tuple[int | str | None, ...], found: Mapping[str, int]) -> tuple[int, ...]:
    """An input's shape with the sizes put in."""
    return tuple(found[size] if isinstance(size, str) else size or 0 for size in declared)


def _symbols(name: str, info: ModelInfo) -> list[str]:
    wanted: dict[str, None] = {}
    for spec in info.inputs:
        if spec.shape is None or None in spec.shape:
            raise BackendUnavailable(
                name,
                f"it builds an engine for one shape, and the input {spec.name!r} has dimensions without a name",
                "Give the model fixed shapes, or dimensions with names.",
            )
        wanted.update(dict.fromkeys(size for size in spec.shape if isinstance(size, str)))
    return list(wanted)


def _remedy(wanted: list[str]) -> str:
    sizes = ", ".join(f'"{each}": {128 if each == "sequence" else 1}' for each in wanted)
    return f'Give each a size, such as options={{"{OPTION}": {{{sizes}}}}}.'
