"""What the types of inputs and outputs rule out.

Runtimes return types that NumPy lacks as others (fp8 as uint8, bf16 as fp16), or fail when they run. OpenVINO computes
integers in 32 bits, and reads the lower ones of greater numbers without an error.
"""

from __future__ import annotations

import re

import numpy as np

from isorun.plugin import Feeds, InvalidFeeds, ModelInfo, TensorSpec, UnsupportedModel

_WIDE = ("tensor(int64)", "tensor(uint64)", "tensor(uint32)")
_LIMIT = 2**31


def check_types(name: str, info: ModelInfo) -> None:
    """Raise ``UnsupportedModel`` for inputs or outputs of a type that NumPy lacks, such as bf16, fp8 and 4-bit
    integers."""
    for kind, specs in (("input", info.inputs), ("output", info.outputs)):
        for spec in specs:
            elements = re.findall(r"tensor\((\w+)\)", spec.type)
            if any(element != "string" and TensorSpec("", element, ()).dtype is None for element in elements):
                raise UnsupportedModel(
                    f"{name} does not support the {kind} {spec.name!r} of type {spec.type}, which NumPy does not have. "
                    "Cast it to another type in the model, such as float"
                )


class WideFeeds:
    """Rejects feeds beyond 32 bits."""

    def __init__(self, name: str, info: ModelInfo) -> None:
        self._name = name
        # A mask or an id with bounds has been checked.
        self._inputs = [
            spec.name
            for spec in info.inputs
            if spec.type in _WIDE and not (spec.bounds and spec.bounds[0] >= -_LIMIT and spec.bounds[1] < _LIMIT)
        ]

    def __bool__(self) -> bool:
        """Whether there are inputs to check."""
        return bool(self._inputs)

    def reject(self, feeds: Feeds) -> None:
        """Raise ``InvalidFeeds`` for a number beyond 32 bits."""
        for name in self._inputs:
            array = feeds.get(name)
            if not isinstance(array, np.ndarray) or not array.size:
                continue
            if array.item(array.argmin()) < -_LIMIT or array.item(array.argmax()) >= _LIMIT:
                raise InvalidFeeds(
                    f"{self._name} computes integers in 32 bits, and the input {name!r} has numbers outside "
                    f"[{-_LIMIT}, {_LIMIT - 1}]. Use another backend, such as ort-cpu"
                )
