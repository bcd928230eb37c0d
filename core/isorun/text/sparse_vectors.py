"""Sparse vectors: a row of indices and values for each text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from isorun.system.packages import require
from isorun.text.model import Array

if TYPE_CHECKING:
    from scipy.sparse import csr_array

Indices = npt.NDArray[np.int64]


class SparseVector(NamedTuple):
    """The values of a vector that are not 0.

    Attributes:
        indices: their positions, ascending, int64.
        values: float32.
    """

    indices: Indices
    values: Array


class SparseVectors:
    """Sparse vectors in order, as :class:`SparseVector` when they are iterated over or indexed.

    Args:
        rows: the vectors.
        dimension: the number of values of each, zeros included.
    """

    def __init__(self, rows: Sequence[SparseVector], dimension: int) -> None:
        self._rows = rows
        self.dimension = dimension

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> SparseVector:
        return self._rows[index]

    def __iter__(self) -> Iterator[SparseVector]:
        return iter(self._rows)

    def __repr__(self) -> str:
        return f"<isorun.SparseVectors: {len(self)} of {self.dimension} values>"

    @property
    def shape(self) -> tuple[int, int]:
        """The number of vectors, and of the values of each."""
        return len(self), self.dimension

    def to_scipy(self) -> csr_array:
        """A ``scipy.sparse.csr_array`` of float32, (number of vectors, dimension).

        Raises:
            IsorunError: SciPy is not installed.
        """
        require("to_scipy()", "scipy")
        from scipy.sparse import csr_array

        starts = np.cumsum([0, *(len(row.indices) for row in self._rows)])
        indices = np.concatenate([np.empty(0, np.int64), *(row.indices for row in self._rows)])
        values = np.concatenate([np.empty(0, np.float32), *(row.values for row in self._rows)])
        return csr_array((values, indices, starts), shape=self.shape)

    def to_dense(self) -> Array:
        """An array (number of vectors, dimension), float32."""
        dense = np.zeros(self.shape, np.float32)
        for index, row in enumerate(self._rows):
            dense[index, row.indices] = row.values
        return dense


def sparse_rows(vectors: Array, maximum: int | None) -> list[SparseVector]:
    """The rows of an array, with its largest values only.

    Args:
        vectors: (count, dimension).
        maximum: how many values to keep of each; ``None`` for all.
    """
    return [largest(SparseVector(indices := np.flatnonzero(row), row[indices]), maximum) for row in vectors]


def largest(row: SparseVector, maximum: int | None) -> SparseVector:
    """A vector with its largest values only, regardless of their signs."""
    if maximum is None or len(row.values) <= maximum:
        return row
    kept = np.sort(np.argpartition(-np.abs(row.values), maximum - 1)[:maximum])
    return SparseVector(row.indices[kept], row.values[kept])
