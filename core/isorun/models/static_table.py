"""The table of words of a static embedding."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from isorun.errors import InvalidModel
from isorun.models.dense import tensors_of

TABLE = "embedding.weight"


class StaticTable:
    """The vectors of words in ``model.safetensors``, as sentence-transformers and Model2Vec store them.

    Args:
        folder: of the module.

    Raises:
        InvalidModel: there is no such table.
    """

    def __init__(self, folder: Path) -> None:
        path = folder / "model.safetensors"
        tensors = tensors_of(path, integers=("mapping",))
        table = tensors.get(TABLE, tensors.get("embeddings"))
        if table is None or table.ndim != 2:
            raise InvalidModel(f"{path} must have a matrix {TABLE} or embeddings, got {', '.join(tensors)}")
        if TABLE not in tensors:
            if (mapping := tensors.get("mapping")) is not None:
                if mapping.ndim != 1 or not (len(mapping) and mapping.min() >= 0 and mapping.max() < len(table)):
                    raise InvalidModel(f"{path}: mapping must have rows of embeddings, 0 to {len(table) - 1}")
                table = table[mapping.astype(np.int64)]
            if (weights := tensors.get("weights")) is not None:
                if weights.shape != (len(table),):
                    raise InvalidModel(f"{path}: weights must be {len(table)} numbers, got shape {weights.shape}")
                table = table * weights[:, None]
        self._table = table

    @property
    def shape(self) -> tuple[int, int]:
        """The numbers of words and of values of each."""
        rows, columns = self._table.shape
        return rows, columns

    def check(self, name: str, shape: tuple[int, ...]) -> None:
        """As :class:`isorun.graph.builders.builder.Weights` has it."""
        assert (name, shape) == (TABLE, self.shape)

    def read(self, name: str, shape: tuple[int, ...]) -> np.ndarray:
        """The table."""
        self.check(name, shape)
        return np.ascontiguousarray(self._table, dtype=np.float32)
