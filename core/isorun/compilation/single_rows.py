"""Rows that run one at a time, each without the padding at its end.

Where a runtime returns the same bits for the same feeds, a row has the same bits in any batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from isorun.compilation.buckets import Buckets
from isorun.errors import UnsupportedModel
from isorun.plugin.backend import Executable
from isorun.types import INDEX_ERRORS, Feeds, ModelInfo, RuntimeReport, StaticShapes


class SingleRows(Executable):
    """An executable of which each row is a run. Raises ``UnsupportedModel`` if rows cannot be told apart."""

    def __init__(self, executable: Executable, backend: str, info: ModelInfo) -> None:
        self._executable, self._info = executable, info
        self._sizes = Buckets(backend, StaticShapes(), info)
        if reason := self._sizes.exact.get("batch"):
            executable.close()
            raise UnsupportedModel(f"deterministic=True: {backend} runs rows one at a time, and {reason}")

    def run(self, output_names: Sequence[str], feeds: Feeds) -> list[Any]:
        by_row, by_token = self._sizes.by_row, self._sizes.by_token
        rows = min(len(feeds[name]) for name in by_row if name in feeds)
        length = next((feeds[name].shape[1] for name in by_token if name in feeds), 0)
        results: list[list[np.ndarray]] = []
        for row, end in enumerate(self._ends(feeds, rows, length)):
            single = {name: array[row : row + 1] if name in by_row else array for name, array in feeds.items()}
            single |= {name: single[name][:, :end] for name in by_token if name in single}
            results.append(self._executable.run(output_names, single))
        return [
            self._joined(name, arrays, length)
            for name, arrays in zip(output_names, zip(*results, strict=True), strict=True)
        ]

    def report(self) -> RuntimeReport:
        return self._executable.report()

    def close(self) -> None:
        self._executable.close()

    def _ends(self, feeds: Feeds, rows: int, length: int) -> list[int]:
        """Where the padding at each row's end begins, or the end of the row if it reads its padding."""
        if not length:
            return [0] * rows
        kept = np.asarray(self._info.attended(feeds)) != 0
        ends = np.where(self._info.may_be_padded(kept), length - kept[:, ::-1].argmax(axis=1), length)
        return [int(end) for end in ends]

    def _joined(self, name: str, arrays: Sequence[np.ndarray], length: int) -> np.ndarray:
        """An output of all rows, with zeros at the padding that was left out."""
        if name == INDEX_ERRORS:
            worst: np.ndarray = np.stack(arrays).max(axis=0)
            return worst
        if name not in self._sizes.by_token:
            return np.concatenate(arrays)
        joined: np.ndarray = np.zeros((len(arrays), length, *arrays[0].shape[2:]), arrays[0].dtype)
        for row, array in enumerate(arrays):
            joined[row, : array.shape[1]] = array[0]
        return joined
