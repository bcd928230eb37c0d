"""Archives of arrays (``.npz``) that NumPy reads back without pickle."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping
from typing import Any

import numpy as np

from isorun.errors import IsorunError


def content(arrays: Mapping[str, Any]) -> bytes:
    """The content of a file with named arrays.

    Texts become NumPy's, and types that NumPy lacks, such as bfloat16, wider ones with the same values: NumPy would
    read them back as bytes without a type.

    Raises:
        IsorunError: a value is not an array, or is a text that ends with NUL.
    """
    odd = [name for name, value in arrays.items() if not isinstance(value, np.ndarray)]
    if odd:
        raise IsorunError(f"Cannot save {', '.join(odd)}: .npz files hold tensors only. Choose tensors with --outputs")
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:  # savez() would take some names for its own arguments
        for name, value in arrays.items():
            array = _readable(value)
            if value.dtype == object and not (array.astype(object) == value).all():
                raise IsorunError(f"Cannot save {name}: .npz files do not keep NUL at the end of a text")
            with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                np.lib.format.write_array(file, array, allow_pickle=False)
    return buffer.getvalue()


def _readable(array: np.ndarray) -> np.ndarray:
    if array.dtype == object:
        return array.astype(np.str_)
    if array.dtype.isbuiltin != 2:  # registered by another package, such as ml_dtypes
        return array
    return array.astype(np.float32 if "float" in array.dtype.name else np.int8)
