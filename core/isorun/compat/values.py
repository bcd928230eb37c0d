"""``onnxruntime.OrtValue`` to arrays and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from onnxruntime.capi.onnxruntime_inference_collection import OrtValue

from isorun.errors import InvalidFeeds


class _Result(OrtValue):  # type: ignore[misc]  # ONNX Runtime has no types
    """A value whose ``numpy()`` is the array that it was made of; ONNX Runtime's is a view that keeps nothing alive."""

    array: np.ndarray

    def numpy(self) -> np.ndarray:
        return self.array


def to_arrays(feeds: Any, *, copy: bool = False) -> Any:
    """Feeds with every ``OrtValue`` replaced by its array; other feeds are unchanged.

    The array is a view, or with ``copy`` memory of its own: a run may end after the caller has freed the value. A value
    on a GPU is left to the session, which reads it by DLPack.

    Raises:
        InvalidFeeds: a value is not a tensor.
    """
    if not isinstance(feeds, Mapping) or not any(isinstance(value, OrtValue) for value in feeds.values()):
        return feeds
    arrays = {name: to_array(name, value) for name, value in feeds.items() if isinstance(value, OrtValue)}
    if copy:
        arrays = {name: array.copy() if isinstance(array, np.ndarray) else array for name, array in arrays.items()}
    return {**feeds, **arrays}


def to_array(name: str, value: OrtValue) -> Any:
    """The array of one value: see :func:`to_arrays`."""
    if not value.is_tensor():
        raise InvalidFeeds(f"Input {name!r}: an OrtValue of {value.data_type()} is not supported. Pass a list or array")
    return value.numpy() if value.device_name() == "cpu" else value


def to_ort_value(name: str, result: Any) -> OrtValue:
    """A result in host memory as an ``OrtValue`` over the same memory.

    Raises:
        InvalidFeeds: ONNX Runtime cannot make a value of it (strings, sequences, maps).
    """
    if not isinstance(result, np.ndarray) or result.dtype.kind in "OSU":
        kind = getattr(result, "dtype", type(result).__name__)
        raise InvalidFeeds(f"Output {name!r} ({kind}) cannot be an OrtValue. Use run()")
    array = np.asarray(result, order="C")
    value: _Result = _Result.ortvalue_from_numpy(array)
    value.array = array
    return value
