"""What a model takes and gives, as JSON: arrays by type, shape and place in a segment, everything else by value.

==============================================  ===========================================================
value                                           described as
==============================================  ===========================================================
array or scalar of numbers or truth values      ``{"array": "<f4", "shape": [2, 7], "at": 64}``
array of strings                                ``{"strings": "|O", "shape": [2], "values": ["a", "b"]}``
list or tuple (an ONNX sequence)                ``{"list": [...]}``
dict (an ONNX map)                              ``{"map": [[key, value], ...]}``
``None`` (an empty optional), Python's scalars  ``{"value": 1}``
==============================================  ===========================================================
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from isorun.isolation.worker.memory import aligned

_NUMBERS = "biufc"
_STRINGS = "OU"

Viewer = Callable[[np.dtype[Any], tuple[int, ...], int], np.ndarray]
"""Makes the array of a type and shape at a place."""


class Packing:
    """Describes values and finds each of their arrays a place, one after another.

    Attributes:
        arrays: the arrays to be copied, in order.
        places: where each goes.
        size: how many bytes they need in all.
    """

    def __init__(self) -> None:
        self.arrays: list[Any] = []
        self.places: list[int] = []
        self.size = 0

    def describe(self, value: Any) -> dict[str, Any]:
        """A value's description.

        Raises:
            TypeError: it is nothing that a model takes or gives.
        """
        if isinstance(value, np.ndarray | np.generic):
            return self._array(value)
        if value is None or isinstance(value, bool | int | float | str):
            return {"value": value}
        if isinstance(value, list | tuple):
            return {"list": [self.describe(each) for each in value]}
        if isinstance(value, Mapping):
            return {"map": [[self.describe(key), self.describe(each)] for key, each in value.items()]}
        raise TypeError(f"a {type(value).__name__}, which is nothing that an ONNX model takes or gives")

    def _array(self, value: Any) -> dict[str, Any]:
        kind, shape = value.dtype.kind, list(value.shape)
        if kind in _NUMBERS:
            at = aligned(self.size)
            self.arrays.append(value)
            self.places.append(at)
            self.size = at + value.nbytes
            return {"array": value.dtype.str, "shape": shape, "at": at}
        strings = value.reshape(-1).tolist() if kind in _STRINGS else [None]
        if all(isinstance(each, str) for each in strings):
            return {"strings": value.dtype.str, "shape": shape, "values": strings}
        raise TypeError(f"an array of {value.dtype}, which cannot be handed to another process")


def is_plain(value: Any) -> bool:
    """Whether an array's description follows from its type and shape alone."""
    return isinstance(value, np.ndarray | np.generic) and value.dtype.kind in _NUMBERS


def rebuild(described: Mapping[str, Any], view: Viewer) -> Any:
    """The value of a description."""
    if "array" in described:
        return view(np.dtype(described["array"]), tuple(described["shape"]), described["at"])
    if "strings" in described:
        return np.array(described["values"], dtype=described["strings"]).reshape(described["shape"])
    if "list" in described:
        return [rebuild(each, view) for each in described["list"]]
    if "map" in described:
        return {rebuild(key, view): rebuild(each, view) for key, each in described["map"]}
    return described["value"]
