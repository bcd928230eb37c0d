"""Sparse vectors without a model: the weight of each word that a text has."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from isorun.errors import InvalidModel
from isorun.models import sentence_keys
from isorun.models.dense import tensors_of
from isorun.models.keys import read_table
from isorun.models.tokenizer import Tokenizer
from isorun.text.model import warn_of_truncation
from isorun.text.sparse_vectors import SparseVector


class SparseLookup:
    """sentence-transformers' ``SparseStaticEmbedding``.

    Args:
        folder: of the module, with the weights and the tokenizer.
        max_length: the maximum number of tokens of a text; ``None`` for the tokenizer's.

    Raises:
        InvalidModel, UnsupportedModel: a file is missing, damaged or not supported.
    """

    def __init__(self, folder: Path, max_length: int | None) -> None:
        read_table(folder / "config.json", sentence_keys.STATIC_SPARSE)
        path = folder / "model.safetensors"
        weight = tensors_of(path).get("weight")
        self.tokenizer: Tokenizer = Tokenizer.beside(folder, special_tokens=False)
        if weight is None or weight.ndim != 1 or len(weight) < self.tokenizer.library.get_vocab_size():
            raise InvalidModel(f"{path} must have a vector 'weight' with a number for each word of the tokenizer")
        self._weight = weight
        self.max_length: int | None = max_length or self.tokenizer.settings.limit

    def rows(self, texts: Sequence[str]) -> list[SparseVector]:
        """The vector of each text."""
        if not texts:
            return []
        encodings = self.tokenizer.encodings(texts, self.max_length)
        warn_of_truncation(encodings, self.max_length)
        words = (np.unique(np.array(encoding.ids, np.int64)) for encoding in encodings)
        kept = (indices[self._weight[indices] != 0] for indices in words)
        return [SparseVector(indices, self._weight[indices]) for indices in kept]
