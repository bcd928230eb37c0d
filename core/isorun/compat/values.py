"""``onnxruntime.OrtValue`` to arrays and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from onnxruntime.capi.onnxruntime_inference_collection import OrtValue

from isorun.errors import InvalidFeeds


def to_arrays(feeds: Any) -> Any:
    """Feeds with every ``OrtValue`` replaced by its array, without a copy; other feeds are unchanged.

    A value on a GPU is left to the session, which reads it by DLPack.

    Raises:
        InvalidFeeds: a value is not a tensor.
    """
    if not isinstance(feeds, Mapping) or not any(isinstance(value, OrtValue) for value in feeds.values()):
        return feeds
    return {name: to_array(name, value) if isinstance(value, OrtValue) else value for name, value in feeds.items()}


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
    return OrtValue.ortvalue_from_numpy(np.asarray(result, order="C"))
