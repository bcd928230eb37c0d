"""LangChain ``Embeddings`` on isorun."""

from __future__ import annotations

import os
from typing import Any

from langchain_core.embeddings import Embeddings

from isorun.integrations.records import KeepsIdentity


class IsorunEmbeddings(KeepsIdentity, Embeddings):
    """Embeds documents and queries; with a router in the model, each by its own route.

    Give ``metadata()`` to a vector store's collection, and ``check()`` the metadata when it is opened again.

    Args:
        model: as for :class:`isorun.Embedder`.
        query_prompt, document_prompt: names of the model's prompts; ``None`` for ``"query"``, and for ``"document"`` or
            ``"passage"``, if the model has them, otherwise for its default.
        options: other arguments of :class:`isorun.Embedder`.

    Raises:
        InvalidArgument: the model has no such prompt, or ``quantize`` is among the options.
    """

    def __init__(
        self,
        model: str | os.PathLike[str],
        *,
        query_prompt: str | None = None,
        document_prompt: str | None = None,
        **options: Any,
    ) -> None:
        self._open(model, options, query_prompt, document_prompt)

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        """A vector for each document."""
        vectors: list[list[float]] = self.embedder.embed(texts, prompt_name=self._document).tolist()
        return vectors

    def embed_query(self, text: str) -> list[float]:
        """The vector of a query."""
        vector: list[float] = self.query_embedder.embed([text], prompt_name=self._query)[0].tolist()
        return vector

    async def aembed_documents(self, texts: list[str]) -> list[list[float]]:
        """As :meth:`embed_documents`, without blocking the event loop."""
        vectors: list[list[float]] = (await self.embedder.aembed(texts, prompt_name=self._document)).tolist()
        return vectors

    async def aembed_query(self, text: str) -> list[float]:
        """As :meth:`embed_query`, without blocking the event loop."""
        vector: list[float] = (await self.query_embedder.aembed([text], prompt_name=self._query))[0].tolist()
        return vector
