"""Three kinds of embeddings of a text from one pass of a model."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from isorun.errors import InvalidModel
from isorun.models.dense import Dense, read_linear
from isorun.models.pooling import normalized
from isorun.models.tokenizer import Tokens
from isorun.models.vectors import TOKENS
from isorun.system.paths import inside
from isorun.text.encoded import Encoded
from isorun.text.max_sim import Vectors, max_sim
from isorun.text.model import Array, Mask, TextModel
from isorun.text.scored_tokens import ids_of
from isorun.text.sparse_vectors import SparseVector, SparseVectors

TOKEN_LAYER, WORD_LAYER = "colbert_linear.pt", "sparse_linear.pt"
"""The files of BGE-M3 with the layers after its encoder."""
_UNWEIGHTED = ("cls_token", "eos_token", "pad_token", "unk_token")


class HybridVectors(NamedTuple):
    """The embeddings of texts, in order.

    Attributes:
        dense: (texts, width), of length 1, float32.
        sparse: the weights of each text's words, by their token id.
        tokens: of each text, a vector of length 1 for each token after the first one: (tokens - 1, width), float32.
    """

    dense: Array
    sparse: SparseVectors
    tokens: list[Vectors]


class HybridScores(NamedTuple):
    """The scores of documents for queries, each (queries, documents), float32.

    Attributes:
        dense: the dot product of dense vectors.
        sparse: the sum over words that both have of the product of their weights.
        tokens: the mean over a query's tokens of the greatest dot product with a token of the document.
    """

    dense: Array
    sparse: Array
    tokens: Array


class HybridEmbedder(TextModel):
    """Turns texts into dense, sparse and multi-vector embeddings by one pass of the model, as BGE-M3 does
    (https://arxiv.org/abs/2402.03216).

    ::

        with isorun.HybridEmbedder("BAAI/bge-m3") as embedder:
            documents = embedder.embed(["Paris is the capital of France.", "..."])
            scores = embedder.score(embedder.embed(["What is the capital of France?"]), documents)
            print(0.4 * scores.dense + 0.2 * scores.sparse + 0.4 * scores.tokens)

    Args:
        model: a checkpoint's folder or name, with ``colbert_linear.pt`` and ``sparse_linear.pt`` beside its weights.
        max_length, batch_tokens, session_options: as for :class:`isorun.Embedder`.

    Attributes:
        dimension: the width of dense vectors.

    Raises:
        InvalidModel: there is no such model, or it lacks one of the files.
        IsorunError: as :class:`isorun.Session`.
    """

    dimension: int

    def _prepare(self) -> None:
        self._token_layer, self._word_layer = self._layers()
        self.dimension = self._token_layer.weight.shape[1]
        special = self.tokenizer.special_tokens
        self._unweighted = ids_of(self.tokenizer, (special[name] for name in _UNWEIGHTED if name in special))
        self._words = self.tokenizer.library.get_vocab_size()

    def embed(self, texts: Iterable[str] | Encoded, *, progress: bool | None = None) -> HybridVectors:
        """Embed texts.

        Args:
            texts: in a collection as for :meth:`isorun.Embedder.embed`, or the result of :meth:`encode`.
            progress: as in :meth:`isorun.Embedder.embed`.

        Raises:
            InvalidFeeds, InvalidArgument: as :meth:`isorun.Embedder.embed`.

        Warns:
            TruncationWarning: texts exceed ``max_length`` and were cut.
        """
        return self._joined(self._rows(self._items_or_tokens(texts), self._finish, progress))

    async def aembed(self, texts: Iterable[str] | Encoded) -> HybridVectors:
        """As :meth:`embed`, without blocking the event loop."""
        return self._joined(await self._arows(self._items_or_tokens(texts), self._finish))

    def score(self, queries: HybridVectors, documents: HybridVectors) -> HybridScores:
        """Score documents for queries by each kind of embedding.

        Raises:
            IsorunError: SciPy is not installed.
        """
        words = queries.sparse.to_scipy() @ documents.sparse.to_scipy().T
        return HybridScores(
            queries.dense @ documents.dense.T,
            np.asarray(words.toarray(), np.float32),
            max_sim(queries.tokens, documents.tokens, mean=True),
        )

    def _feeds(self, encodings: Sequence[Tokens]) -> tuple[dict[str, npt.NDArray[Any]], Mask]:
        """The feeds, and in place of a mask the token ids plus 1, 0 at padding."""
        encoded = self.tokenizer.batch(encodings, self._columns)
        return self.feeds(encoded), np.where(encoded["attention_mask"] != 0, encoded["input_ids"] + 1, 0)

    def _finish(self, hidden: Array, numbers: Mask) -> Iterable[tuple[Array, SparseVector, Vectors]]:
        weights = np.maximum(self._word_layer(hidden)[..., 0], np.float32(0))
        dense = normalized(hidden[:, 0])
        for row, weight, vector, own in zip(hidden, weights, dense, numbers, strict=True):
            real = own > 0
            yield vector, self._sparse(own[real] - 1, weight[real]), normalized(self._token_layer(row[real][1:]))

    def _sparse(self, ids: Mask, weights: Array) -> SparseVector:
        """The greatest weight of each word."""
        counted = (weights > 0) & ~np.isin(ids, self._unweighted)
        words, positions = np.unique(ids[counted], return_inverse=True)
        greatest = np.zeros(len(words), np.float32)
        np.maximum.at(greatest, positions, weights[counted])
        return SparseVector(words, greatest)

    def _joined(self, rows: Sequence[tuple[Array, SparseVector, Vectors]]) -> HybridVectors:
        dense = np.array([row[0] for row in rows], np.float32).reshape(len(rows), self.dimension)
        return HybridVectors(dense, SparseVectors([row[1] for row in rows], self._words), [row[2] for row in rows])

    def _choose(self, outputs: dict[str, int]) -> str:
        if outputs:
            raise InvalidModel("HybridEmbedder opens the folder or the name of a checkpoint, got an ONNX file")
        return TOKENS[0]

    def _layers(self) -> tuple[Dense, Dense]:
        width = (self.output.shape or (None,))[-1]
        layers = [read_linear(inside(self.folder, name)) for name in (TOKEN_LAYER, WORD_LAYER)]
        for name, layer in zip((TOKEN_LAYER, WORD_LAYER), layers, strict=True):
            if layer.weight.shape[1] != width:
                raise InvalidModel(f"{self.folder / name} expects {layer.weight.shape[1]} values, got {width}")
        if len(layers[1].weight) != 1:
            raise InvalidModel(f"{self.folder / WORD_LAYER} must have one output, got {len(layers[1].weight)}")
        return layers[0], layers[1]
