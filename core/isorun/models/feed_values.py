"""Conversion and validation of one feed, by the type that the model declares: tensors, sequences, optional values."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np

from isorun.errors import InvalidFeeds
from isorun.plugin import device_arrays as device
from isorun.system.arguments import is_unicode
from isorun.types import TensorSpec

_STRINGS = "tensor(string)"


def convert(spec: TensorSpec, value: Any) -> Any:
    """A feed with lists, numbers and instances of subclasses as plain arrays, if no information is lost.

    Raises:
        InvalidFeeds: a list cannot be converted to an array, a number is not a value of the input's dtype, an array has
            masked values, or a tensor of strings contains something else.
    """
    if spec.dtype is not None:
        return _as_array(spec, value)
    kind = spec.type.partition("(")[0]
    if kind == "optional":
        return None if value is None else convert(_held(spec), value)
    if kind == "seq":
        return [convert(item_spec, item) for item_spec, item in _items(spec, value)]
    if spec.type == _STRINGS:
        return _strings(spec, value)
    return _as_array(spec, value) if kind == "tensor" else value


def check(spec: TensorSpec, value: Any, *, on_device: bool) -> None:
    """Reject a converted feed that is not what the model declares.

    Args:
        spec: the input.
        value: what :func:`convert` returned.
        on_device: whether it may be an array in device memory.
    """
    kind = spec.type.partition("(")[0]
    if kind == "optional":
        if value is not None:
            check(_held(spec), value, on_device=on_device)
    elif kind == "seq":
        for item_spec, item in _items(spec, value):
            check(item_spec, item, on_device=False)
    elif kind == "tensor":
        _check_array(spec, value, on_device=on_device)


def shape_in_words(shape: Sequence[int | str | None] | None) -> str:
    """A shape as messages write it."""
    return "of any shape" if shape is None else "[" + ", ".join("?" if s is None else str(s) for s in shape) + "]"


def _held(spec: TensorSpec) -> TensorSpec:
    """The specification of what an optional value or a sequence holds."""
    return replace(spec, type=spec.type.partition("(")[2][:-1])


def _items(spec: TensorSpec, value: Any) -> Iterator[tuple[TensorSpec, Any]]:
    if not isinstance(value, list | tuple):
        raise InvalidFeeds(f"Input {spec.name!r} must be a list ({spec.type}), got {type(value).__name__}")
    for index, item in enumerate(value):
        yield replace(_held(spec), name=f"{spec.name}[{index}]", shape=None), item


@cache
def _dtype_of(type_name: str) -> np.dtype[Any] | None:
    """The dtype of a tensor; of a type that NumPy lacks, the one of ``ml_dtypes``; ``None`` for an unknown type."""
    import onnx_ir as ir

    dtype = TensorSpec("", type_name, None).dtype
    name = type_name.removeprefix("tensor(").removesuffix(")").upper()
    if dtype is None and name in ir.DataType.__members__:
        dtype = ir.DataType[name].numpy()
    return dtype


def _as_array(spec: TensorSpec, value: Any) -> Any:
    name, dtype = spec.name, spec.dtype
    if isinstance(value, np.ndarray | np.generic):
        _refuse_masked(spec, value)
        return np.asarray(value)
    if dtype is None or not isinstance(value, list | tuple | bool | int | float):
        return value
    try:
        array = np.asarray(value)
    except (ValueError, TypeError, OverflowError) as error:
        raise InvalidFeeds(f"Input {name!r}: cannot convert the list to an array: {error}") from error
    if isinstance(value, list | tuple):
        _refuse_masked(spec, value, array.ndim)
    are_integers = array.dtype.kind in "iu" and dtype.kind in "iu"  # Python's have no sign
    if array.size and not are_integers and not np.can_cast(array.dtype, dtype, "same_kind"):
        return array if array.dtype.kind in "fiub" else value
    with np.errstate(over="ignore", invalid="ignore"):
        converted = array.astype(dtype)
        if array.dtype.kind in "iu":  # compared as integers: as floating-point numbers, both may be rounded alike
            lost = (converted if dtype.kind in "iu" else converted.real.astype(array.dtype)) != array
        else:
            lost = np.isfinite(array) & ~np.isfinite(converted)
    if (outside := array[lost]).size:
        why = "has no value" if dtype.kind in "fc" and np.isfinite(converted[lost][0]) else "is out of range"
        raise InvalidFeeds(f"Input {name!r} is {dtype}, and {outside[0]} {why} for that type")
    return converted


def _refuse_masked(spec: TensorSpec, value: Any, depth: int = 1) -> None:
    """Reject masked values in an array, or in arrays in lists of a depth."""
    if isinstance(value, list | tuple):
        for item in value if depth > 1 else ():
            _refuse_masked(spec, item, depth - 1)
        return
    # Only subclasses are compared with np.ma, whose import takes 10 ms.
    is_subclass = isinstance(value, np.ndarray) and type(value) is not np.ndarray
    if is_subclass and isinstance(value, np.ma.MaskedArray) and np.any(value.mask):
        raise InvalidFeeds(
            f"Input {spec.name!r} is a numpy.ma.MaskedArray, and runtimes would read its masked values. "
            "Replace them with array.filled(...)"
        )


def _strings(spec: TensorSpec, value: Any) -> np.ndarray:
    """Convert a feed to an object array of strings.

    ONNX Runtime reads bytes beyond their end, and converts other objects to strings.
    """
    array = np.asarray(value, dtype=object) if isinstance(value, list | tuple | str) else value
    if not isinstance(array, np.ndarray):
        raise InvalidFeeds(f"Input {spec.name!r} must be a numpy.ndarray of strings, got {type(array).__name__}")
    if array.dtype.kind == "S":
        raise InvalidFeeds(
            f"Input {spec.name!r} must contain strings, got bytes. Convert it with numpy.char.decode(array)"
        )
    _refuse_masked(spec, array)
    array = np.asarray(array).astype(object, copy=False)
    for item in array.flat:
        if not isinstance(item, str):
            raise InvalidFeeds(f"Input {spec.name!r} must contain strings, got {item!r} ({type(item).__name__})")
        if not is_unicode(item):
            raise InvalidFeeds(
                f"Input {spec.name!r} contains a lone surrogate (was it decoded from invalid UTF-8?): {item[:80]!r}"
            )
    return array


def _check_array(spec: TensorSpec, array: Any, *, on_device: bool) -> None:
    dtype = None if spec.type == _STRINGS else spec.dtype or _dtype_of(spec.type)
    library = "numpy" if spec.dtype else "ml_dtypes"
    if not isinstance(array, np.ndarray) and not (on_device and isinstance(array, device.DeviceArray)):
        if device.is_on_device(array):
            raise InvalidFeeds(
                f"Input {spec.name!r} is on a GPU, but this backend reads host memory. Copy it (CuPy: array.get(), "
                "PyTorch: tensor.cpu().numpy()), or choose a GPU backend"
            )
        raise InvalidFeeds(
            f"Input {spec.name!r} must be a numpy.ndarray of {dtype}, got {type(array).__name__}. "
            f"Convert it with numpy.asarray(..., dtype={library}.{dtype})"
        )
    if dtype is not None and array.dtype != dtype:
        raise InvalidFeeds(
            f"Input {spec.name!r} must be {dtype} ({spec.type}), got {array.dtype}. "
            f"Convert it with array.astype({library}.{dtype})"
        )
    _check_shape(spec, array)


def _check_shape(spec: TensorSpec, array: np.ndarray | device.DeviceArray) -> None:
    if spec.shape is None:
        return
    if array.ndim != len(spec.shape):
        plural = "" if len(spec.shape) == 1 else "s"
        raise InvalidFeeds(
            f"Input {spec.name!r} must have {len(spec.shape)} dimension{plural} {shape_in_words(spec.shape)}, "
            f"got shape {shape_in_words(array.shape)}"
        )
    for axis, size in enumerate(spec.shape):
        if isinstance(size, int) and array.shape[axis] != size:
            raise InvalidFeeds(
                f"Input {spec.name!r} must have size {size} at dimension {axis} of {shape_in_words(spec.shape)}, "
                f"got {array.shape[axis]} in {shape_in_words(array.shape)}"
            )
