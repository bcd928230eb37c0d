"""Tensors of the Open Inference Protocol: as JSON, and as binary data behind it."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt

from isorun.types import TensorSpec
from isorun_serve.answers import finite
from isorun_serve.errors import ApiError

_TYPES = {
    "tensor(bool)": "BOOL",
    "tensor(uint8)": "UINT8",
    "tensor(uint16)": "UINT16",
    "tensor(uint32)": "UINT32",
    "tensor(uint64)": "UINT64",
    "tensor(int8)": "INT8",
    "tensor(int16)": "INT16",
    "tensor(int32)": "INT32",
    "tensor(int64)": "INT64",
    "tensor(float16)": "FP16",
    "tensor(float)": "FP32",
    "tensor(double)": "FP64",
    "tensor(string)": "BYTES",
}
_BYTES = "BYTES"
Array = npt.NDArray[Any]


def datatype(spec: TensorSpec) -> str:
    """The protocol's name of a tensor's type; ONNX Runtime's, if it has none."""
    return _TYPES.get(spec.type, spec.type)


def has_datatype(spec: TensorSpec) -> bool:
    """Whether the protocol has a name for a tensor's type."""
    return spec.type in _TYPES


def read(inputs: Sequence[dict[str, Any]], specs: Sequence[TensorSpec], binary: bytes) -> dict[str, Array]:
    """The arrays of a request.

    Args:
        inputs: the request's.
        specs: the model's inputs.
        binary: what follows the JSON.

    Raises:
        ApiError: a tensor is not one of the model, has another type, or does not have the data for its shape.
    """
    known = {spec.name: spec for spec in specs}
    feeds: dict[str, Array] = {}
    start = 0
    for tensor in inputs:
        name = tensor["name"]
        if name not in known:
            raise _wrong(name, f"the model has no such input (inputs: {', '.join(known)})")
        if name in feeds:
            raise _wrong(name, "the request has it twice")
        expected = datatype(known[name])
        if not has_datatype(known[name]):
            raise _wrong(name, f"the protocol has no datatype for {expected}")
        if tensor["datatype"] != expected:
            raise _wrong(name, f"datatype must be {expected}, got {tensor['datatype']}")
        size = tensor["parameters"]["binary_data_size"]
        if size is None:
            array = _from_json(name, tensor["data"], known[name], tensor["shape"])
        else:
            if tensor["data"] is not None:
                raise _wrong(name, "data and binary_data_size cannot both be set")
            if not 0 <= size <= len(binary) - start:
                raise _wrong(name, f"binary_data_size must be at most the {len(binary) - start} bytes left, got {size}")
            array = _from_bytes(name, binary[start : start + size], known[name])
            start += size
        shape = tensor["shape"]
        if math.prod(shape) != array.size:
            raise _wrong(name, f"shape {shape} needs {math.prod(shape)} values, got {array.size}")
        try:
            feeds[name] = array.reshape(shape)
        except (ValueError, OverflowError) as error:
            raise _wrong(name, "shape has too many dimensions, or a dimension that is too large") from error
    if start != len(binary):
        raise ApiError(400, f"{len(binary) - start} bytes of binary data belong to no input. Set binary_data_size")
    return feeds


def write(spec: TensorSpec, array: Array, *, binary: bool) -> tuple[dict[str, Any], bytes]:
    """An output as the JSON of an answer, and its binary data.

    Raises:
        ApiError: JSON cannot hold it.
    """
    content: dict[str, Any] = {"name": spec.name, "datatype": datatype(spec), "shape": list(array.shape)}
    if not binary:
        flat = finite(array.reshape(-1), f"The output {spec.name!r}", ". Request it as binary data")
        return {**content, "data": flat.tolist() if flat.dtype.kind in "Oe" else flat}, b""
    data = (
        _strings(array)
        if array.dtype.kind == "O"
        else np.ascontiguousarray(array, array.dtype.newbyteorder("<")).tobytes()
    )
    return {**content, "parameters": {"binary_data_size": len(data)}}, data


def _from_json(name: str, data: Any, spec: TensorSpec, shape: list[int]) -> Array:
    if data is None:
        raise _wrong(name, "data is missing. Send it, or binary_data_size with binary data")
    dtype = spec.dtype
    try:
        nested = np.asarray(data, object if dtype is None else None)
    except ValueError as error:
        raise _wrong(name, "data must be a list of values, or lists of one length") from error
    # Lists do not tell the sizes after one of 0.
    if nested.ndim > 1 and list(nested.shape) != (shape if nested.size else shape[: nested.ndim]):
        raise _wrong(name, f"data is nested as {list(nested.shape)}, and shape is {shape}")
    array = nested.reshape(-1)
    if array.dtype.kind != "b" and bool in _types(data):  # NumPy makes numbers of them
        raise _wrong(name, f"data must be {'strings' if dtype is None else dtype}, got both true or false and others")
    if dtype is None:
        if not all(isinstance(item, str) for item in array):
            raise _wrong(name, "data must be strings")
        return array
    if array.dtype.kind in "fO" and dtype.kind != "b":  # NumPy makes floats of large integers
        array = _exact(np.asarray(data, object).reshape(-1), dtype, array)
    kinds = {"b": "b", "i": "iu", "u": "iu"}.get(dtype.kind, "iuf")
    if array.size and array.dtype.kind not in kinds:
        raise _wrong(name, f"data must be {dtype}")
    with np.errstate(over="ignore"):
        converted: Array = array.astype(dtype)
    lost = converted != array if dtype.kind in "iu" else ~np.isfinite(converted)  # JSON has no such numbers
    if lost.any():
        raise _wrong(name, f"data must be {dtype}, got a number outside its range")
    return converted


def _types(data: Any) -> set[type]:
    """The types of the values in nested lists."""
    types, level = set[type](), [data]
    while level:
        kinds = set(map(type, level))
        types |= kinds
        if list not in kinds:
            break
        lists = level if kinds == {list} else (item for item in level if type(item) is list)
        level = list(chain.from_iterable(lists))
    return types - {list}


def _exact(numbers: Array, dtype: np.dtype[Any], otherwise: Array) -> Array:
    """Integers in the type of a tensor, if they are integers that it can hold."""
    if (dtype.kind in "iu" or otherwise.dtype.kind == "O") and all(type(number) is int for number in numbers):
        with contextlib.suppress(OverflowError):
            return np.array(numbers.tolist(), dtype)
    return otherwise


def _from_bytes(name: str, data: bytes, spec: TensorSpec) -> Array:
    if spec.dtype is None:
        return np.array(_texts(name, data), dtype=object)
    if len(data) % spec.dtype.itemsize:
        raise _wrong(name, f"binary_data_size must be a multiple of {spec.dtype.itemsize}, got {len(data)}")
    array: Array = np.frombuffer(data, spec.dtype.newbyteorder("<")).astype(spec.dtype)
    if spec.dtype.kind == "b" and np.frombuffer(data, np.uint8).max(initial=0) > 1:
        raise _wrong(name, "binary data must be bytes of 0 and 1")
    return array


def _texts(name: str, data: bytes) -> list[str]:
    """Strings, each after its length in four bytes."""
    texts, start = [], 0
    while start < len(data):
        end = start + 4 + int.from_bytes(data[start : start + 4], "little")
        if start + 4 > len(data) or end > len(data):
            raise _wrong(name, "binary data of strings must have the length of each in four bytes before it")
        try:
            texts.append(data[start + 4 : end].decode())
        except UnicodeDecodeError as error:
            raise _wrong(name, "strings must be UTF-8") from error
        start = end
    return texts


def _strings(array: Array) -> bytes:
    encoded = [str(text).encode() for text in array.reshape(-1)]
    return b"".join(len(text).to_bytes(4, "little") + text for text in encoded)


def _wrong(name: str, problem: str) -> ApiError:
    return ApiError(400, f"Input {name!r}: {problem}", param=name)
