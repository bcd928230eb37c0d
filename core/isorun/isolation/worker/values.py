"""Model inputs and outputs as JSON: arrays by dtype, shape and offset in a segment, everything else by value.

==============================================  ===========================================================
value                                           description
==============================================  ===========================================================
array or scalar of numbers or booleans          ``{"array": "<f4", "shape": [2, 7], "offset": 64}``
the same of a type that NumPy lacks             ``{"array": "bfloat16", "shape": [2, 7], "offset": 64}``
array of strings                                ``{"strings": "|O", "shape": [2], "values": ["a", "b"]}``
list (an ONNX sequence)                         ``{"list": [...]}``
tuple (the same in feeds)                       ``{"tuple": [...]}``
dict (an ONNX map)                              ``{"map": [[key, value], ...]}``
``None`` (an empty optional), Python scalar     ``{"value": 1}``
==============================================  ===========================================================
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from isorun.isolation.worker.memory import aligned

_NUMBERS = "biufc"
_STRINGS = "OU"
_CACHE_SIZE = 256

Viewer = Callable[[np.dtype[Any], tuple[int, ...], int], np.ndarray]
"""Returns the array of a dtype and shape at an offset."""


class Packing:
    """Describes values and assigns an offset to each of their arrays.

    Attributes:
        arrays: the arrays to copy, in order.
        offsets: the offset of each, in bytes.
        size: the total size in bytes.
    """

    def __init__(self) -> None:
        self.arrays: list[Any] = []
        self.offsets: list[int] = []
        self.size: int = 0

    def describe(self, value: Any) -> dict[str, Any]:
        """The description of a value. Raises ``TypeError`` if it is not a type of ONNX."""
        if isinstance(value, np.ndarray | np.generic):
            return self._array(value)
        if value is None or isinstance(value, bool | int | float | str):
            return {"value": value}
        if isinstance(value, list | tuple):
            return {"list" if isinstance(value, list) else "tuple": [self.describe(item) for item in value]}
        if isinstance(value, Mapping):
            return {"map": [[self.describe(_key(key)), self.describe(item)] for key, item in value.items()]}
        raise TypeError(f"expected an array, string, number, list, mapping or None, got {type(value).__name__}")

    def _array(self, value: Any) -> dict[str, Any]:
        shape = list(value.shape)
        if is_plain(value):
            offset = aligned(self.size)
            self.arrays.append(value)
            self.offsets.append(offset)
            self.size = offset + value.nbytes
            name = value.dtype.name if _is_lacking(value.dtype) else value.dtype.str
            return {"array": name, "shape": shape, "offset": offset}
        strings = value.reshape(-1).tolist() if value.dtype.kind in _STRINGS else [None]
        if all(isinstance(item, str) for item in strings):
            return {"strings": value.dtype.str, "shape": shape, "values": strings}
        raise TypeError(f"cannot send an array of {value.dtype} to another process")


def _key(key: Any) -> Any:
    """The key of a mapping as a number or a string of Python, since the copy of an array is none."""
    return key.item() if isinstance(key, np.generic) else key


def is_plain(value: Any) -> bool:
    """Whether the description of a value follows from its dtype and shape."""
    numbers = isinstance(value, np.ndarray | np.generic)
    return numbers and (value.dtype.kind in _NUMBERS or _is_lacking(value.dtype))


def _is_lacking(dtype: np.dtype[Any]) -> bool:
    """Whether NumPy lacks a type, which ``ml_dtypes`` has registered: its ``str`` is that of another one."""
    return dtype.isbuiltin == 2


def _dtype(name: str) -> np.dtype[Any]:
    try:
        return np.dtype(name)
    except TypeError:
        import ml_dtypes

        dtype: np.dtype[Any] = np.dtype(getattr(ml_dtypes, name))
        return dtype


def rebuild(described: Mapping[str, Any], view: Viewer) -> Any:
    """The value of a description."""
    if "array" in described:
        return view(_dtype(described["array"]), tuple(described["shape"]), described["offset"])
    if "strings" in described:
        return np.array(described["values"], dtype=described["strings"]).reshape(described["shape"])
    if "list" in described:
        return [rebuild(item, view) for item in described["list"]]
    if "tuple" in described:
        return tuple(rebuild(item, view) for item in described["tuple"])
    if "map" in described:
        return {rebuild(key, view): rebuild(item, view) for key, item in described["map"]}
    return described["value"]


def remember(descriptions: dict[Any, Any], key: Any, value: Any) -> None:
    """Keep a description in a cache of bounded size."""
    if len(descriptions) >= _CACHE_SIZE:
        descriptions.clear()
    descriptions[key] = value
