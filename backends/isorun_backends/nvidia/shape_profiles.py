"""Optimization profiles: the shapes that a TensorRT engine is built for, and which profile a run uses.

A profile gives each symbolic dimension a minimum, an optimum and a maximum. Profiles are declared
(``options={"shapes": [...]}``), derived from observed shapes, or a default that covers most uses of encoders.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from isorun.plugin import BackendUnavailable, InvalidFeeds, InvalidOption, ModelInfo, did_you_mean

_RANGE = re.compile(r"(\d+)(?:\.\.(\d+))?(?:\.\.(\d+))?")
_DEFAULT = {"batch": (1, 8, 32), "sequence": (1, 128, 512)}
_STEP = 32  # observed sequence lengths are rounded up to a multiple of it

Size = tuple[int, int, int]
"""The minimum, the optimum and the maximum of a dimension."""

Range = tuple[list[int], list[int], list[int]]
"""The minimum, the optimum and the maximum shape of a tensor."""


@dataclass(frozen=True)
class Profile:
    """One optimization profile: its sizes by the name of a symbolic dimension."""

    sizes: Mapping[str, Size]

    def contains(self, sizes: Mapping[str, int]) -> bool:
        """Whether a run of these sizes fits the profile."""
        return all(self.sizes[name][0] <= size <= self.sizes[name][2] for name, size in sizes.items())

    def distance(self, sizes: Mapping[str, int]) -> float:
        """The relative distance from the optimum; 0 at the optimum."""
        return sum(abs(size - self.sizes[name][1]) / self.sizes[name][1] for name, size in sizes.items())

    def maxima(self) -> dict[str, int]:
        """The maximum of each dimension."""
        return {name: size[2] for name, size in self.sizes.items()}

    def as_plain(self) -> dict[str, list[int]]:
        """The same for JSON, sorted by name."""
        return {name: list(self.sizes[name]) for name in sorted(self.sizes)}

    def __str__(self) -> str:
        def text(size: Size) -> str:
            minimum, optimum, maximum = size
            return str(optimum) if minimum == maximum else f"{minimum}..{optimum}..{maximum}"

        return " ".join(f"{name}={text(size)}" for name, size in self.sizes.items())


def symbols(info: ModelInfo) -> list[str]:
    """The symbolic dimensions of the inputs that must be fed, in order of appearance."""
    return list(dict.fromkeys(size for spec in info.required for size in spec.shape or () if isinstance(size, str)))


def declared(name: str, info: ModelInfo, shapes: Sequence[object] | None) -> list[Profile]:
    """The profiles that the option ``shapes`` declares, or the default.

    Args:
        shapes: each item is ``"8x128"`` or ``"1..8x1..128..512"`` (sizes in the order of :func:`symbols`: one size,
            minimum..maximum, or minimum..optimum..maximum), or a mapping of dimensions to a size or to two or three;
            ``None`` for the default.

    Raises:
        InvalidOption: a shape is invalid.
        BackendUnavailable: a dimension has no default.
    """
    names = symbols(info)
    if shapes is None:
        return [Profile({symbol: _default(name, symbol, info.limits.get(symbol)) for symbol in names})]
    if not shapes:
        raise InvalidOption(name, "shapes", "option 'shapes' is an empty list. Omit it for the default")
    profiles = []
    for shape in shapes:
        try:
            numbers = _numbers(names, shape)
            sizes = {symbol: _size(symbol, numbers[symbol], info.limits.get(symbol)) for symbol in names}
        except ValueError as error:
            raise InvalidOption(name, "shapes", f"option 'shapes', {shape!r}: {error}") from error
        profiles.append(Profile(sizes))
    return profiles


def observed(sizes: Mapping[str, int], limits: Mapping[str, int | None]) -> Profile:
    """The profile of an observed shape, with the sequence length rounded up to a multiple of 32 (or to the model's
    limit).

    It also covers everything smaller, so that a smaller batch needs no other engine.
    """
    rounded = {name: _rounded(name, size, limits.get(name)) for name, size in sizes.items()}
    return Profile({name: (1, size, size) for name, size in rounded.items()})


def select(profiles: Sequence[Profile], sizes: Mapping[str, int]) -> int:
    """The index of the profile for a run of these sizes: of those that contain it, the one with the closest optimum.
    Raises ``InvalidFeeds`` with all of them if none does."""
    matching = [index for index, profile in enumerate(profiles) if profile.contains(sizes)]
    if not matching:
        requested = " ".join(f"{name}={size}" for name, size in sizes.items())
        raise InvalidFeeds(
            f"No engine was built for {requested}. Its profiles: {'; '.join(map(str, profiles))}. Declare the shape "
            "with options={'shapes': [...]}, or build engines in the background with options={'on_miss': 'build'}"
        )
    return min(matching, key=lambda index: profiles[index].distance(sizes))


def shapes_for(info: ModelInfo, profile: Profile) -> dict[str, Range]:
    """The minimum, optimum and maximum shape of each input that must be fed and has a symbolic dimension."""
    shapes = {}
    for spec in info.required:
        if spec.shape is None or all(isinstance(size, int) for size in spec.shape):
            continue
        minimum, optimum, maximum = (
            [size if isinstance(size, int) else profile.sizes[size or ""][which] for size in spec.shape]
            for which in range(3)
        )
        shapes[spec.name] = (minimum, optimum, maximum)
    return shapes


def _rounded(name: str, size: int, limit: int | None) -> int:
    if name != "sequence":
        return size
    up = -(-size // _STEP) * _STEP
    return up if limit is None else min(up, limit)


def _default(name: str, symbol: str, limit: int | None) -> Size:
    if symbol not in _DEFAULT:
        raise BackendUnavailable(
            name,
            f"the model's dimension {symbol!r} has no default size",
            f"Declare the shapes: options={{'shapes': [{{{symbol!r}: [1, 8, 32], ...}}]}}.",
        )
    minimum, optimum, maximum = _DEFAULT[symbol]
    maximum = maximum if limit is None else min(maximum, limit)
    return minimum, min(optimum, maximum), maximum


def _numbers(names: Sequence[str], shape: object) -> dict[str, list[Any]]:
    """The one to three sizes of each dimension that a declaration gives."""
    if isinstance(shape, str):
        matches = [_RANGE.fullmatch(part) for part in shape.split("x")]
        complete = [match for match in matches if match is not None]
        if len(matches) != len(names) or len(complete) != len(matches):
            raise ValueError(f"expected {'x'.join(names) or 'no dimensions'}, each a size or a range, such as 1..8x128")
        parsed = ([int(size) for size in match.groups() if size is not None] for match in complete)
        return dict(zip(names, parsed, strict=True))
    if isinstance(shape, Mapping):
        for key in shape:
            if key not in names:
                raise ValueError(f"the model has no dimension {key!r}{did_you_mean(key, names)}")
        if missing := [symbol for symbol in names if symbol not in shape]:
            raise ValueError(f"no size for the dimension {missing[0]!r}")
        return {key: list(size) if isinstance(size, Sequence) else [size] for key, size in shape.items()}
    raise ValueError("expected a string such as '8x128', or a mapping of dimensions to sizes")


def _size(symbol: str, numbers: Sequence[Any], limit: int | None) -> Size:
    if not 1 <= len(numbers) <= 3 or not all(isinstance(size, int) and size > 0 for size in numbers):
        raise ValueError(f"{symbol!r} must be one to three integers above 0, got {list(numbers)}")
    minimum, optimum, maximum = numbers[0], numbers[len(numbers) // 2], numbers[-1]
    if not minimum <= optimum <= maximum:
        raise ValueError(f"the sizes of {symbol!r} must be in ascending order, got {list(numbers)}")
    if limit is not None and maximum > limit:
        raise ValueError(f"{symbol!r} is at most {limit} in this model, got {maximum}")
    return minimum, optimum, maximum
