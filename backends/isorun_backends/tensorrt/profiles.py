"""Optimization profiles: which shapes an engine is built for, and which of them a run falls into.

A profile gives each symbolic dimension a least, a best and a greatest size. It is declared
(``options={"shapes": [...]}``), made of shapes that were observed, or a default that takes most of what encoders are
given.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from isorun.errors import BackendUnavailable, InvalidFeeds, did_you_mean
from isorun.types import ModelInfo

_RANGE = re.compile(r"(\d+)(?:\.\.(\d+))?(?:\.\.(\d+))?")
_DEFAULT = {"batch": (1, 8, 32), "sequence": (1, 128, 512)}
_STEP = 32  # observed sequences are rounded up to a multiple of it

Size = tuple[int, int, int]
"""The least, the best and the greatest size of a dimension."""


@dataclass(frozen=True)
class Profile:
    """What one optimization profile allows.

    Attributes:
        sizes: by the name of a symbolic dimension.
    """

    sizes: Mapping[str, Size]

    def holds(self, sizes: Mapping[str, int]) -> bool:
        """Whether a run of these sizes falls into it."""
        return all(self.sizes[name][0] <= size <= self.sizes[name][2] for name, size in sizes.items())

    def waste(self, sizes: Mapping[str, int]) -> float:
        """How far it is from what it is best for: 0 at the best sizes."""
        return sum(abs(size - self.sizes[name][1]) / self.sizes[name][1] for name, size in sizes.items())

    def as_plain(self) -> dict[str, list[int]]:
        """The same for JSON, in the order of names."""
        return {name: list(self.sizes[name]) for name in sorted(self.sizes)}

    def __str__(self) -> str:
        def one(size: Size) -> str:
            least, best, most = size
            return str(best) if least == most else f"{least}..{best}..{most}"

        return " ".join(f"{name}={one(size)}" for name, size in self.sizes.items())


def symbols(info: ModelInfo) -> list[str]:
    """The symbolic dimensions of a model's inputs, in the order in which they come."""
    found: dict[str, None] = {}
    for spec in info.inputs:
        found.update(dict.fromkeys(size for size in spec.shape or () if isinstance(size, str)))
    return list(found)


def declared(name: str, info: ModelInfo, shapes: object) -> list[Profile]:
    """The profiles that an option declares, or the default.

    Args:
        name: the backend's.
        info: the model.
        shapes: a list, each item ``"8x128"`` or ``"1..8x1..128..512"`` (sizes in the order of :func:`symbols`: one
            size, least..greatest, or least..best..greatest), or a mapping of dimensions to a size or to two or three;
            ``None`` for the default.

    Raises:
        BackendUnavailable: a shape means nothing, or a dimension has no default.
    """
    names = symbols(info)
    if shapes is None:
        return [_default(name, info, names)]
    if isinstance(shapes, str) or not isinstance(shapes, Sequence) or not shapes:
        raise BackendUnavailable(name, f"shapes is {shapes!r}", "Give a list such as ['1x128', '1..8x1..128..512'].")
    return [_one(name, info, names, each) for each in shapes]


def observed(seen: Iterable[Mapping[str, int]], limits: Mapping[str, int | None]) -> list[Profile]:
    """One profile for each bucket of the shapes that were seen.

    A bucket is a batch size and a sequence rounded up to a multiple of 32 (or the model's limit): as many buckets as
    differ so. Each takes everything from 1 up to its size, so that a smaller batch is not a new bucket.
    """
    buckets: dict[tuple[tuple[str, int], ...], None] = {}
    for sizes in seen:
        rounded = {name: _rounded(name, size, limits.get(name)) for name, size in sizes.items()}
        buckets[tuple(rounded.items())] = None
    return [Profile({name: (1, size, size) for name, size in bucket}) for bucket in buckets]


def select(profiles: Sequence[Profile], sizes: Mapping[str, int]) -> int:
    """The profile that a run of these sizes takes: of those that hold it, the nearest to its best sizes.

    Raises:
        InvalidFeeds: none holds it; the message names them all.
    """
    holding = [index for index, profile in enumerate(profiles) if profile.holds(sizes)]
    if not holding:
        came = " ".join(f"{name}={size}" for name, size in sizes.items())
        raise InvalidFeeds(
            f"No engine was built for {came}. The profiles: {'; '.join(map(str, profiles))}. Declare the shape with "
            "options={'shapes': [...]}, or have it built aside with options={'on_miss': 'build'}"
        )
    return min(holding, key=lambda index: profiles[index].waste(sizes))


def shapes_for(info: ModelInfo, profile: Profile) -> dict[str, tuple[list[int], list[int], list[int]]]:
    """The least, best and greatest shape of each input with a symbolic dimension."""
    found = {}
    for spec in info.inputs:
        if spec.shape is None or all(isinstance(size, int) for size in spec.shape):
            continue
        least, best, most = (
            [size if isinstance(size, int) else profile.sizes[size or ""][which] for size in spec.shape]
            for which in range(3)
        )
        found[spec.name] = (least, best, most)
    return found


def _rounded(name: str, size: int, limit: int | None) -> int:
    if name != "sequence":
        return size
    up = -(-size // _STEP) * _STEP
    return up if limit is None else min(up, limit)


def _default(name: str, info: ModelInfo, names: Sequence[str]) -> Profile:
    sizes = {}
    for each in names:
        if each not in _DEFAULT:
            raise BackendUnavailable(
                name,
                f"the model has a dimension {each!r}, which has no default size",
                f"Declare the shapes: options={{'shapes': [{{{each!r}: [1, 8, 32], ...}}]}}.",
            )
        least, best, most = _DEFAULT[each]
        limit = info.limits.get(each)
        top = most if limit is None else min(most, limit)
        sizes[each] = (least, min(best, top), top)
    return Profile(sizes)


def _one(name: str, info: ModelInfo, names: Sequence[str], given: object) -> Profile:
    if isinstance(given, str):
        parts = given.split("x")
        matched = [_RANGE.fullmatch(part) for part in parts]
        if len(parts) != len(names) or not all(matched):
            raise BackendUnavailable(
                name,
                f"the shape {given!r} is none of {'x'.join(names) or 'a model without symbolic dimensions'}",
                "Write a size, least..greatest or least..best..greatest for each, such as 1..8x128.",
            )
        found: dict[str, list[Any]] = {
            symbol: [int(size) for size in match.groups() if size is not None]
            for symbol, match in zip(names, matched, strict=True)
            if match is not None
        }
    elif isinstance(given, Mapping):
        found = {str(key): list(size) if isinstance(size, Sequence) else [size] for key, size in given.items()}
        for key in found:
            if key not in names:
                raise BackendUnavailable(
                    name, f"the model has no dimension {key!r}{did_you_mean(key, names)}", "Correct the shape."
                )
        if missing := [each for each in names if each not in found]:
            raise BackendUnavailable(name, f"the shape {given!r} has no {missing[0]!r}", "Give every dimension.")
    else:
        raise BackendUnavailable(name, f"a shape is {given!r}", "Give a text such as '8x128', or a mapping.")
    return Profile({symbol: _size(name, symbol, found[symbol], info.limits.get(symbol)) for symbol in names})


def _size(name: str, symbol: str, numbers: Sequence[Any], limit: int | None) -> Size:
    if not 1 <= len(numbers) <= 3 or not all(isinstance(each, int) and each > 0 for each in numbers):
        raise BackendUnavailable(
            name, f"the size of {symbol!r} is {list(numbers)}", "Give one to three whole numbers above 0."
        )
    least, best, most = numbers[0], numbers[len(numbers) // 2], numbers[-1]
    if not least <= best <= most:
        raise BackendUnavailable(name, f"the sizes of {symbol!r} do not rise: {list(numbers)}", "Sort them.")
    if limit is not None and most > limit:
        raise BackendUnavailable(
            name, f"{symbol} goes up to {limit} in this model, and a shape asks for {most}", "Ask for less."
        )
    return least, best, most
