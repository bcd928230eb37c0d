"""What a collection's vectors depend on, kept with the collection and compared when it is opened again."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from isorun.errors import InvalidArgument, did_you_mean
from isorun.system.cache import expanded
from isorun.system.caller_warnings import warn
from isorun.system.cleanup import closed_on_error
from isorun.text.embedder import Embedder
from isorun.text.identity import VectorIdentity, compared

KEY = "isorun_vectors"
"""The key of a collection's metadata."""


class VectorsMayDiffer(UserWarning):
    """A collection's vectors were computed in another way, and what a search loses was not measured."""


class KeepsIdentity:
    """An adapter that embeds documents and queries, and knows what its document vectors depend on.

    Attributes:
        embedder: computes the vectors of documents.
        query_embedder: computes those of queries: the same, unless the model has another route for them.
    """

    embedder: Embedder
    query_embedder: Embedder
    _document: str | None
    _query: str | None

    def _open(
        self,
        model: str | os.PathLike[str],
        options: Mapping[str, Any],
        query_prompt: str | None = None,
        document_prompt: str | None = None,
    ) -> None:
        """Open the model.

        Args:
            model, options: as for :class:`isorun.Embedder`.
            query_prompt, document_prompt: the names of prompts; ``None`` for the model's.

        Raises:
            InvalidArgument: the model has no such prompt, or ``quantize`` is among the options.
            IsorunError: as :class:`isorun.Embedder`.
        """
        if options.get("quantize") is not None:  # a store would compare bytes and packed bits as if they were values
            raise InvalidArgument(f"quantize={options['quantize']!r}: the vectors of a collection are floats. Omit it")
        self.embedder = self.query_embedder = Embedder(model, **options)
        with closed_on_error(self.embedder):
            routes = self.embedder.modules.routes
            if "task" not in options and None not in routes:
                if "document" in routes and self.embedder.modules.route(None) != "document":
                    self.embedder.close()
                    self.embedder = self.query_embedder = Embedder(model, task="document", **options)
                if "query" in routes:
                    self.query_embedder = Embedder(model, task="query", **options)
            self._query = self._prompt_of(query_prompt, "query")
            self._document = self._prompt_of(document_prompt, "document", "passage")

    def _prompt_of(self, name: str | None, *defaults: str) -> str | None:
        if name is None:
            return self.embedder.prompt_named(*defaults)
        if name not in self.embedder.prompts:
            raise InvalidArgument(f"Unknown prompt {name!r}{did_you_mean(name, self.embedder.prompts)}")
        return name

    @property
    def identity(self) -> VectorIdentity:
        """What the vectors of documents depend on."""
        identity = self.embedder.identity
        return identity if self._document is None else replace(identity, prompt=self.embedder.prompts[self._document])

    def metadata(self) -> dict[str, str]:
        """:attr:`identity` for the metadata of a collection."""
        return {KEY: json.dumps(self.identity.as_dict(), sort_keys=True)}

    def check(self, metadata: Mapping[str, Any] | None) -> None:
        """Compare with the vectors of a collection.

        Args:
            metadata: of the collection, with what :meth:`metadata` returned when it was made.

        Raises:
            InvalidArgument: the metadata has no such record, or the vectors mean something else, by another model,
                pooling, prompt or width, say.

        Warns:
            VectorsMayDiffer: they differ in precision, backend or calibration, by an amount that was not measured.
        """
        packed = (metadata or {}).get(KEY)
        try:
            record = json.loads(packed) if isinstance(packed, str) else None
        except ValueError as error:
            raise InvalidArgument(f"The metadata {KEY!r} of the collection is damaged: {error}") from error
        if not isinstance(record, dict):
            raise InvalidArgument(
                f"The collection's metadata has no {KEY!r}, so that its vectors cannot be compared with those of this "
                "embedder. Make the collection with metadata()"
            )
        require_comparable(self.identity.as_dict(), record)


def stored_path(model: str | os.PathLike[str]) -> str:
    """A model as a configuration names it, which may be read in another folder: a name, or an absolute path."""
    path = expanded(model)
    return os.fspath(path.absolute() if path.exists() else model)


def stored_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments as a configuration keeps them, in JSON.

    Raises:
        InvalidArgument: one has a type that JSON does not have.
    """
    stored = {name: os.fspath(value) if isinstance(value, os.PathLike) else value for name, value in options.items()}
    for name, value in stored.items():
        try:
            json.dumps(value)
        except (TypeError, ValueError) as error:
            raise InvalidArgument(
                f"{name} cannot be stored with the configuration, which is JSON, got {type(value).__name__}: {error}"
            ) from error
    return stored


def require_comparable(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> None:
    """Compare the records of an embedder and of a collection.

    Raises:
        InvalidArgument: the vectors mean something else, or one is not such a record.

    Warns:
        VectorsMayDiffer: they differ by an amount that was not measured.
    """
    verdict = compared(ours, theirs)
    if verdict.unmeasured:
        warn(
            f"The collection's vectors were computed in another way: {', '.join(verdict.fields)} differ. "
            "`isorun vectors compare` measures what a search loses",
            VectorsMayDiffer,
        )
    elif not verdict:
        raise InvalidArgument(
            f"The collection's vectors cannot be searched with those of this embedder: {verdict.reason} (this embedder "
            "first). Open it with the embedder that it was made with, or make it again"
        )
