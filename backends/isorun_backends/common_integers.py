"""OpenVINO computes integers in 32 bits, and reads the lower ones of greater numbers without an error."""

from __future__ import annotations

import numpy as np

from isorun.plugin import Feeds, InvalidFeeds, ModelInfo

_WIDE = ("tensor(int64)", "tensor(uint64)", "tensor(uint32)")
_LIMIT = 2**31


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
