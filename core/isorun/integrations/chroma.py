"""A Chroma embedding function on isorun. Import this module before opening a collection that was made with it."""

from __future__ import annotations

import json
import os
from typing import Any

from chromadb.api.types import Documents, EmbeddingFunction, Embeddings, Space
from chromadb.utils.embedding_functions import register_embedding_function

from isorun.errors import InvalidArgument
from isorun.integrations.records import KeepsIdentity, require_comparable, stored_options, stored_path
from isorun.system.cleanup import closed_on_error

_built: dict[tuple[int, str], IsorunEmbeddingFunction] = {}
"""By process and configuration: Chroma builds the function of a collection that was opened by it for every call."""


@register_embedding_function
class IsorunEmbeddingFunction(KeepsIdentity, EmbeddingFunction[Documents]):
    """Embeds documents and queries; with a router in the model, each by its own route.

    A collection keeps what its vectors depend on. One that is opened by its stored configuration is compared with it.

    Args:
        model: as for :class:`isorun.Embedder`.
        options: its other arguments, of types that JSON has: Chroma stores them with a collection.

    Raises:
        InvalidArgument: ``quantize`` is among them, or an option of a type that JSON does not have.
    """

    def __init__(self, model: str | os.PathLike[str], **options: Any) -> None:
        # Of a configuration that is not JSON, Chroma stores nothing, and then searches with another model.
        self._config = {"model": stored_path(model), "options": stored_options(options)}
        self._open(model, options)

    def __call__(self, input: Documents) -> Embeddings:  # Chroma checks the name
        """A vector for each document."""
        return list(self.embedder.embed(input, prompt_name=self._document))

    def embed_query(self, input: Documents) -> Embeddings:
        """A vector for each query."""
        return list(self.query_embedder.embed(input, prompt_name=self._query))

    @staticmethod
    def name() -> str:
        """The name under which Chroma finds this function again."""
        return "isorun"

    def default_space(self) -> Space:
        """The distance to compare vectors by."""
        return "cosine"

    def get_config(self) -> dict[str, Any]:
        """What :meth:`build_from_config` needs, and what the vectors depend on."""
        return {**self._config, "identity": self.identity.as_dict()}

    def validate_config_update(self, old_config: dict[str, Any], new_config: dict[str, Any]) -> None:
        """Refuse to replace the function of a collection by one whose vectors mean something else."""
        try:
            require_comparable(new_config["identity"], old_config["identity"])
        except InvalidArgument as error:
            raise InvalidArgument(
                f"{error}. Chroma stores a new function before it is compared: put back the one that the collection "
                "was made with, with modify() of the same Collection object"
            ) from None

    @staticmethod
    def build_from_config(config: dict[str, Any]) -> IsorunEmbeddingFunction:
        """The function that a collection was made with, open until the process ends.

        Raises:
            InvalidArgument: the model or what is made of it has changed since, or nothing says what it was.

        Warns:
            VectorsMayDiffer: see :meth:`check`.
        """
        if missing := {"model", "options", "identity"}.difference(config):
            raise InvalidArgument(f"The configuration lacks {', '.join(sorted(missing))}. Make the collection again")
        key = os.getpid(), json.dumps(config, sort_keys=True)
        function = _built.get(key)
        if function is None or function.embedder.session._model.closed:
            function = IsorunEmbeddingFunction(config["model"], **config["options"])
            with closed_on_error(function.embedder), closed_on_error(function.query_embedder):
                require_comparable(function.identity.as_dict(), config["identity"])
            _built[key] = function
        return function
