"""Sparse embeddings: texts in, weights of words out."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from isorun.errors import InvalidArgument, InvalidModel, InvalidType, UnsupportedModel
from isorun.graph.tasks import WORDS
from isorun.models.modules import STATIC_SPARSE, TRANSFORMERS, Modules
from isorun.system.arguments import check_count, check_items
from isorun.system.cleanup import closed_on_error
from isorun.system.paths import inside
from isorun.text.encoded import Encoded
from isorun.text.heads import head_outputs
from isorun.text.model import Array, Mask
from isorun.text.prompted import PromptedModel
from isorun.text.sparse_lookup import SparseLookup
from isorun.text.sparse_vectors import SparseVector, SparseVectors, largest, sparse_rows

POOLED = "sparse_embedding"
"""The output of a graph that pools the scores of words."""


class SparseEmbedder(PromptedModel):
    """Turns texts into weights of words, as a ``SparseEncoder`` of sentence-transformers (SPLADE) does.

    ::

        with isorun.SparseEmbedder("naver/splade-v3") as embedder:
            vectors = embedder.embed(["A man is eating food."])
            print(embedder.decode(vectors, top_k=5))

    Args:
        model: a checkpoint's folder or name, or an ONNX file, as for :class:`isorun.Embedder`: a model for masked words
            with or without ``modules.json`` (then with SPLADE's maximum over tokens), or a router with an
            inference-free route for queries.
        prompts, default_prompt: as for :class:`isorun.Embedder`.
        max_active_dims: the maximum number of values of a vector: the largest are kept. ``None`` for the model's.
        max_length, session_options: as for :class:`isorun.Embedder`.
        batch_tokens: likewise; ``None`` for 512, since there is a score for each token and word of the vocabulary.

    Attributes:
        dimension: the number of words.

    Raises:
        InvalidModel: there is no such model, or it has no tokenizer or no logits of words.
        UnsupportedModel: the settings name a module that isorun does not have.
        IsorunError: as :class:`isorun.Session`.
    """

    default_batch_tokens = 512

    def __init__(
        self,
        model: str | os.PathLike[str],
        *,
        prompts: Mapping[str, str] | None = None,
        default_prompt: str | None = None,
        max_active_dims: int | None = None,
        max_length: int | None = None,
        batch_tokens: int | None = None,
        **session_options: Any,
    ) -> None:
        max_active_dims = check_count(max_active_dims, "max_active_dims", optional=True)
        super().__init__(model, max_length=max_length, batch_tokens=batch_tokens, **session_options)
        with closed_on_error(self):
            self._set_prompts(prompts, default_prompt)
            self._lookups = {
                route: SparseLookup(inside(self.folder, listed[0].path), max_length)
                for route, listed in self.modules.routes.items()
                if listed and listed[0].kind == STATIC_SPARSE
            }
            self._maximum = max_active_dims or self.settings.max_active_dims
            self.dimension: int = self._dimension()

    def embed(
        self,
        texts: Iterable[str] | Encoded,
        *,
        task: str | None = None,
        prompt_name: str | None = None,
        prompt: str | None = None,
        max_active_dims: int | None = None,
        progress: bool | None = None,
    ) -> SparseVectors:
        """Embed texts.

        Args:
            texts: in a collection as for :meth:`isorun.Embedder.embed`, or the result of :meth:`encode` or
                :meth:`encode_ids`, which runs in the model.
            task: what the texts are: ``"query"`` or ``"document"`` select the prompt of that name, if there is one, and
                the route of a model with a router. ``None`` for the default of both.
            prompt_name, prompt: as in :meth:`isorun.Embedder.embed`.
            max_active_dims: as for the class, for this call.
            progress: as in :meth:`isorun.Embedder.embed`.

        Returns:
            A vector for each text, in order: pairs of indices and values, or a SciPy matrix by
            :meth:`SparseVectors.to_scipy`.

        Raises:
            InvalidFeeds, InvalidArgument: as :meth:`isorun.Embedder.embed`; there is no route for the task; or the
                texts are encoded, and the default route needs the texts.

        Warns:
            TruncationWarning: texts exceed ``max_length`` and were cut.
        """
        items, lookup, maximum = self._request(texts, task, prompt_name, prompt, max_active_dims)
        if lookup is not None:
            return self._vectors(lookup.rows(_texts(items)), maximum)
        return self._vectors(self._rows(items, partial(self._finish, maximum=maximum), progress))

    async def aembed(
        self,
        texts: Iterable[str] | Encoded,
        *,
        task: str | None = None,
        prompt_name: str | None = None,
        prompt: str | None = None,
        max_active_dims: int | None = None,
    ) -> SparseVectors:
        """As :meth:`embed`, without blocking the event loop."""
        items, lookup, maximum = self._request(texts, task, prompt_name, prompt, max_active_dims)
        if lookup is not None:
            return self._vectors(await asyncio.to_thread(lookup.rows, _texts(items)), maximum)
        return self._vectors(await self._arows(items, partial(self._finish, maximum=maximum)))

    def decode(self, vectors: Iterable[SparseVector], top_k: int | None = None) -> list[list[tuple[str, float]]]:
        """The words of vectors with their weights, the heaviest first. A row that the model has above its tokenizer's
        vocabulary is an empty word.

        Args:
            vectors: the result of :meth:`embed`, or some of its vectors.
            top_k: how many words to return for each at most; ``None`` for all.

        Raises:
            InvalidArgument: ``top_k`` is not a positive number, or an index is none of a word.
        """
        top_k = check_count(top_k, "top_k", optional=True)
        if isinstance(vectors, SparseVector):
            raise InvalidType("vectors must be a list of vectors, got a single SparseVector. Put it in a list")
        check_items(vectors, "vectors", "vectors")
        decoded = []
        for position, vector in enumerate(vectors):
            if not isinstance(vector, tuple) or len(vector) != 2:
                raise InvalidType(f"vectors must be a list of SparseVector, got {vector!r} at position {position}")
            indices, values = vector
            order = np.argsort(-values, kind="stable")[:top_k]
            pairs = zip(indices[order].tolist(), values[order].tolist(), strict=True)
            decoded.append([(self._word(index), value) for index, value in pairs])
        return decoded

    def _word(self, index: int) -> str:
        word = self.tokenizer.library.id_to_token(index)
        if word is None and index >= self.dimension:
            raise InvalidArgument(f"vectors has a value for {index}, which is not the number of a word")
        return word or ""

    def _dimension(self) -> int:
        shape = self.output.shape or ()
        if not shape or not isinstance(shape[-1], int):
            raise InvalidModel(f"The output {self.output.name!r} must have a value for each word, got shape {shape}")
        return shape[-1]

    def _route(self, modules: Modules) -> str | None:
        """The route that the model's graph is made of: the first one with a transformer, or the default one."""
        routes = sorted(modules.routes, key=lambda route: route != modules.default)
        kinds = {route: modules.routes[route][0].kind for route in routes if modules.routes[route]}
        own = [route for route in routes if kinds.get(route) in (None, *TRANSFORMERS)]
        if not own:
            raise UnsupportedModel("The model has no transformer: a model of static weights alone is not supported")
        if len(own) > 1:
            raise UnsupportedModel(f"Routes with a transformer each are not supported, got {', '.join(map(str, own))}")
        return own[0]

    def _request(
        self,
        texts: Iterable[str] | Encoded,
        task: str | None,
        prompt_name: str | None,
        prompt: str | None,
        max_active_dims: int | None,
    ) -> tuple[list[str] | Encoded, SparseLookup | None, int | None]:
        """The texts with their prompt, what looks them up if the route needs no model, and the number of values."""
        max_active_dims = check_count(max_active_dims, "max_active_dims", optional=True)
        lookup = self._lookups.get(self.modules.route(task))
        items, _ = self._prompted(texts, prompt, prompt_name, task)
        return items, lookup, max_active_dims or self._maximum

    def _choose(self, outputs: dict[str, int]) -> str:
        settings = self.settings
        if settings.saved_as not in (None, "SparseEncoder") or settings.pooling or settings.layers:
            kind = "Embedder" if settings.late_interaction is None else "MultiVectorEmbedder"
            raise UnsupportedModel(f"The model makes dense vectors. Use isorun.{kind}")
        if outputs.get(POOLED) == 2 or (not outputs and settings.splade is not None):
            return POOLED
        return head_outputs(self.folder, outputs, WORDS, instead="For dense vectors use Embedder")[0]

    def _finish(self, output: Array, mask: Mask, maximum: int | None) -> list[SparseVector]:
        if output.ndim == 3:
            strategy, activation = self.settings.splade or ("max", "relu")
            weights = np.log1p(np.maximum(np.where(mask[..., None] != 0, output, np.float32(0)), np.float32(0)))
            if activation == "log1p_relu":
                weights = np.log1p(weights)
            output = weights.max(axis=1) if strategy == "max" else weights.sum(axis=1)
        return sparse_rows(output, maximum)

    def _vectors(self, rows: Sequence[SparseVector], maximum: int | None = None) -> SparseVectors:
        return SparseVectors([largest(row, maximum) for row in rows], self.dimension)


def _texts(items: list[str] | Encoded) -> list[str]:
    """Texts for a route without a model."""
    if isinstance(items, Encoded):
        raise InvalidArgument("The default route looks texts up without a model. Pass texts instead of their tokens")
    return items
