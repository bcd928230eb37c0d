"""The sizes of a model's symbolic dimensions, which an engine needs since it is built for one shape."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from isorun.plugin import BackendUnavailable, ModelInfo, did_you_mean

OPTION = "dimensions"


def sizes(name: str, info: ModelInfo, option: Any) -> dict[str, int]:
    """A size for each symbolic dimension of a model's inputs.

    Args:
        name: the backend's name.
        info: the model.
        option: ``dimensions``, such as ``{"batch": 1, "sequence": 128}``; ``None`` for a model of fixed shapes.

    Raises:
        BackendUnavailable: a dimension has no size or no name, there is no dimension of that name, or the model does
            not support a size.
    """
    wanted = _symbols(name, info)
    if option is not None and not isinstance(option, Mapping):
        raise BackendUnavailable(name, f"{OPTION} must be a mapping, got {option!r}", _remedy(wanted))
    chosen = dict(option or {})
    for key, size in chosen.items():
        if key not in wanted:
            raise BackendUnavailable(
                name,
                f"the model has no symbolic dimension {key!r}{did_you_mean(str(key), wanted)}",
                _remedy(wanted) if wanted else "Omit it: the model's shapes are fixed.",
            )
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise BackendUnavailable(name, f"the size of {key!r} is {size!r}", "Use a positive integer.")
        limit = info.limits.get(key)
        if limit is not None and size > limit:
            raise BackendUnavailable(name, f"the maximum of {key!r} in this model is {limit}, got {size}", "Reduce it.")
    if missing := [dimension for dimension in wanted if dimension not in chosen]:
        raise BackendUnavailable(
            name,
            f"it builds an engine for one shape, and the option {OPTION} has no size for {' and '.join(missing)}",
            _remedy(wanted),
        )
    return chosen


def shape(declared: tuple[int | str | None, ...], sizes: Mapping[str, int]) -> tuple[int, ...]:
    """An input's shape with sizes for its symbols."""
    return tuple(sizes[size] if isinstance(size, str) else size or 0 for size in declared)


def _symbols(name: str, info: ModelInfo) -> list[str]:
    wanted: dict[str, None] = {}
    for spec in info.inputs:
        if spec.shape is None or None in spec.shape:
            raise BackendUnavailable(
                name,
                f"it builds an engine for one shape, and the input {spec.name!r} has dimensions without a name",
                "Export the model with fixed shapes or named dimensions.",
            )
        wanted.update(dict.fromkeys(size for size in spec.shape if isinstance(size, str)))
    return list(wanted)


def _remedy(wanted: list[str]) -> str:
    sizes = ", ".join(f'"{dimension}": {128 if dimension == "sequence" else 1}' for dimension in wanted)
    return f'Set the sizes with options={{"{OPTION}": {{{sizes}}}}}.'
