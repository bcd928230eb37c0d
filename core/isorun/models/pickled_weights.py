"""Weights that PyTorch pickled (``pytorch_model.bin``, ``*.pt``), read without running what is in the file.

Such a file is a ZIP archive of a pickle, ``data.pkl``, and the bytes of each tensor. Of the pickle, only dictionaries
and descriptions of tensors are read: it cannot name any other function or class.
"""

from __future__ import annotations

import math
import pickle
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from isorun.errors import InvalidModel

_PICKLE = "data.pkl"
_MAX_PICKLE = 256 << 20  # bytes; a description of a tensor takes about a hundred
_BF16 = "BF16"
_STORAGES: Mapping[str, tuple[str, str]] = {  # by PyTorch's names: safetensors' name, and NumPy's type of the bytes
    "FloatStorage": ("F32", "<f4"),
    "HalfStorage": ("F16", "<f2"),
    "BFloat16Storage": (_BF16, "<u2"),
    "DoubleStorage": ("F64", "<f8"),
    "LongStorage": ("I64", "<i8"),
    "IntStorage": ("I32", "<i4"),
    "ShortStorage": ("I16", "<i2"),
    "CharStorage": ("I8", "|i1"),
    "ByteStorage": ("U8", "|u1"),
    "BoolStorage": ("BOOL", "|b1"),
}
_DAMAGE = (
    *(pickle.UnpicklingError, ValueError, TypeError, AttributeError, LookupError, EOFError, OSError, RecursionError),
    *(OverflowError, MemoryError, zipfile.BadZipFile, NotImplementedError),  # the last one: of an archive's features
)


class _Storage(NamedTuple):
    """The bytes of tensors: their name in the archive, and the number and types of their values."""

    key: str
    size: int
    dtype: str
    stored_as: str


class Stored(NamedTuple):
    """A tensor in a file, with the methods of a slice of the package ``safetensors``.

    Attributes:
        storage: its bytes.
        offset: its first value.
        shape, strides: in values.
    """

    storage: _Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    def get_shape(self) -> list[int]:
        """The shape."""
        return list(self.shape)

    def get_dtype(self) -> str:
        """The type, as safetensors names it."""
        return self.storage.dtype


class PickledTensors:
    """The tensors of a file, by the methods of ``safetensors.safe_open``.

    Args:
        path: the file.

    Raises:
        InvalidModel: it is damaged, holds something else than a dictionary of tensors, or is of the format before
            PyTorch 1.6.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self._archive = zipfile.ZipFile(path)
        except (zipfile.BadZipFile, OSError) as error:
            raise InvalidModel(
                f"{path} is not an archive as PyTorch 1.6 and later write it ({error}). Save the model as safetensors"
            ) from error
        if any(entry.compress_type != zipfile.ZIP_STORED for entry in self._archive.infolist()):
            raise InvalidModel(
                f"{path} is compressed, as PyTorch never writes it"
            )  # its size would not bound a tensor's
        names = [name for name in self._archive.namelist() if name.rpartition("/")[2] == _PICKLE]
        if len(names) != 1 or self._archive.getinfo(names[0]).file_size > _MAX_PICKLE:
            raise InvalidModel(f"{path} must have one {_PICKLE} of at most {_MAX_PICKLE >> 20} MiB")
        self._root = names[0].removesuffix(_PICKLE)
        try:
            with self._archive.open(names[0]) as file:
                content = _Unpickler(file).load()
            self._check_order()
        except _DAMAGE as error:
            raise InvalidModel(f"{path} cannot be read as weights: {error}") from error
        if not isinstance(content, dict) or not all(isinstance(name, str) for name in content):
            raise InvalidModel(f"{path} must hold a dictionary of tensors, got {type(content).__name__}")
        self._tensors = {name: value for name, value in content.items() if isinstance(value, Stored)}

    def keys(self) -> Iterable[str]:
        """The names of the tensors."""
        return self._tensors.keys()

    def get_slice(self, name: str) -> Stored:
        """What a tensor is."""
        return self._tensors[name]

    def get_tensor(self, name: str) -> npt.NDArray[Any]:
        """A tensor; bfloat16 as float32.

        Raises:
            InvalidModel: its bytes are damaged.
        """
        storage, offset, shape, strides = self._tensors[name]
        try:
            content = self._archive.read(f"{self._root}data/{storage.key}")
            values = np.frombuffer(content, storage.stored_as, storage.size)
        except _DAMAGE as error:
            raise InvalidModel(f"{self._path}: {name!r} cannot be read: {error}") from error
        steps = tuple(stride * values.itemsize for stride in strides)
        tensor = np.lib.stride_tricks.as_strided(values[offset:], shape, steps, writeable=False)
        if storage.dtype == _BF16:
            return (tensor.astype(np.uint32) << 16).view(np.float32)
        return np.ascontiguousarray(tensor).reshape(shape)

    def _check_order(self) -> None:
        name = f"{self._root}byteorder"
        if name in self._archive.namelist() and self._archive.read(name) != b"little":
            raise ValueError("its numbers are not little-endian")


class _Unpickler(pickle.Unpickler):
    """Reads dictionaries and descriptions of tensors, and nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        if module == "torch" and name in _STORAGES:
            return _STORAGES[name]
        known: Mapping[tuple[str, str], Callable[..., Any]] = {
            ("collections", "OrderedDict"): OrderedDict,
            ("torch._utils", "_rebuild_tensor_v2"): _tensor,
            ("torch._utils", "_rebuild_parameter"): lambda tensor, *_: tensor,
        }
        if (module, name) not in known:
            raise pickle.UnpicklingError(f"it names {module}.{name}, which is not part of a tensor")
        return known[module, name]

    def persistent_load(self, identity: Any) -> _Storage:
        kind, (dtype, stored_as), key, _, size = identity
        if kind != "storage" or not isinstance(key, str) or not isinstance(size, int) or size < 0:
            raise pickle.UnpicklingError(f"it has no storage of numbers but {kind!r}")
        return _Storage(key, size, dtype, stored_as)


def _tensor(storage: _Storage, offset: int, shape: tuple[int, ...], strides: tuple[int, ...], *_: Any) -> Stored:
    """A tensor within its storage."""
    if len(shape) != len(strides) or min((offset, *shape, *strides)) < 0:
        raise pickle.UnpicklingError(f"a tensor has the shape {shape} and the strides {strides}")
    needed = offset + 1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
    needed = max(needed, math.prod(shape))  # with strides of 0, a small file would be a large tensor
    if math.prod(shape) and needed > storage.size:
        raise pickle.UnpicklingError(f"a tensor needs {needed} values, and its storage has {storage.size}")
    return Stored(storage, offset, tuple(shape), tuple(strides))
