"""Multi-vector embeddings: texts in, a vector for each of their tokens out."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from isorun.errors import InvalidArgument, InvalidModel, UnsupportedModel
from isorun.models.late_interaction import DOCUMENT, QUERY, TASKS, LateInteraction
from isorun.models.tokenizer import Tokens
from isorun.models.vectors import TOKENS, applied
from isorun.system.arguments import check_count
from isorun.system.cleanup import closed_on_error
from isorun.text.encoded import Encoded
from isorun.text.inputs import checked, texts_of
from isorun.text.max_sim import Vectors, max_sim
from isorun.text.model import Array, Mask, warn_of_truncation
from isorun.text.prompted import PromptedModel
from isorun.text.ranked import Ranked, ranked
from isorun.text.scored_tokens import Reader, ScoredTokens
from isorun.text.steps import width_after


class MultiVectorEmbedder(PromptedModel):
    """Turns a text into a vector for each of its tokens, as ColBERT, PyLate and the ``MultiVectorEncoder`` of
    sentence-transformers do, and scores documents by them.

    ::

        with isorun.MultiVectorEmbedder("lightonai/GTE-ModernColBERT-v1") as embedder:
            documents = embedder.embed(["Paris is the capital of France.", "..."], task="document")
            queries = embedder.embed(["What is the capital of France?"], task="query")
            print(embedder.score(queries, documents))

    Args:
        model: a checkpoint's folder or name, or an ONNX file that ``isorun build`` wrote, as for
            :class:`isorun.Embedder`: saved by sentence-transformers 6, by PyLate or by Stanford's ColBERT.
        query_length: the maximum number of tokens of a query, prompt and special tokens included, and the number to
            which queries are filled up where the model does that; ``None`` for the model's.
        document_length: likewise, of a document.
        prompts, default_prompt: as for :class:`isorun.Embedder`.
        max_length: the maximum number of tokens of any text, queries and documents included; ``None`` for the model's.
        batch_tokens, session_options: as for :class:`isorun.Embedder`. ``padding`` is ``"keep"`` if the
            model computes the tokens that fill a query up without attending to them.

    Attributes:
        dimension: the width of the vectors.

    Raises:
        InvalidModel: there is no such model, or it has no tokenizer.
        UnsupportedModel: the model is of another kind, or the settings name a module that isorun does not have.
        IsorunError: as :class:`isorun.Session`.
    """

    def __init__(
        self,
        model: str | os.PathLike[str],
        *,
        query_length: int | None = None,
        document_length: int | None = None,
        prompts: Mapping[str, str] | None = None,
        default_prompt: str | None = None,
        max_length: int | None = None,
        batch_tokens: int | None = None,
        **session_options: Any,
    ) -> None:
        query_length = check_count(query_length, "query_length", optional=True)
        document_length = check_count(document_length, "document_length", optional=True)
        self._padding = session_options.get("padding")
        super().__init__(model, max_length=max_length, batch_tokens=batch_tokens, **session_options)
        with closed_on_error(self):
            self._set_prompts(prompts, default_prompt)
            for name, length in (("query_length", query_length), ("document_length", document_length)):
                if length is not None:
                    self._checked_length(length, name)
            self._late = _with_lengths(self._settings_of_tasks(), query_length, document_length, max_length)
            self._reader = Reader(self._late, self.tokenizer)
            self._check_window()
            self.dimension: int = self._dimension()

    def encode(  # type: ignore[override]  # texts are not pairs
        self,
        texts: Iterable[str],
        *,
        task: str | None = None,
        prompt_name: str | None = None,
        prompt: str | None = None,
    ) -> Encoded:
        """The tokens of texts with their prompt, as the model reads them: :meth:`embed` and :meth:`aembed` accept them
        in place of the texts, which are then tokenized once.

        Args:
            texts, task, prompt_name, prompt: as in :meth:`embed`.

        Raises:
            InvalidFeeds, InvalidArgument: as :meth:`embed`.
        """
        if task not in (None, *TASKS):
            raise InvalidArgument(f"task must be 'query', 'document' or None, got {task!r}")
        prefix = self._prompt(prompt, prompt_name, task)
        items = [prefix + text for text in texts_of(texts)]
        encodings = self._encodings(items, self._limit(task)) if items else []
        return Encoded([self._reader.read(encoding, task) for encoding in encodings], prefix)

    def embed(
        self,
        texts: Iterable[str] | Encoded,
        *,
        task: str | None = None,
        prompt_name: str | None = None,
        prompt: str | None = None,
        progress: bool | None = None,
    ) -> list[Vectors]:
        """Embed texts.

        Args:
            texts: in a collection as for :meth:`isorun.Embedder.embed`, or the result of :meth:`encode`.
            task: what the texts are: ``"query"`` or ``"document"`` select the prompt of that name, if there is one, the
                maximum length, whether the text is filled up and which of its tokens have a vector. ``None`` for the
                default prompt and the model's maximum length.
            prompt_name, prompt: as in :meth:`isorun.Embedder.embed`.
            progress: as in :meth:`isorun.Embedder.embed`.

        Returns:
            For each text, in order, (tokens, :attr:`dimension`), float32.

        Raises:
            InvalidFeeds, InvalidArgument: as :meth:`isorun.Embedder.embed`; an unknown task.

        Warns:
            TruncationWarning: texts exceed the maximum length and were cut.
        """
        return self._rows(self._read(texts, task, prompt_name, prompt), self._finish, progress)

    async def aembed(
        self,
        texts: Iterable[str] | Encoded,
        *,
        task: str | None = None,
        prompt_name: str | None = None,
        prompt: str | None = None,
    ) -> list[Vectors]:
        """As :meth:`embed`, without blocking the event loop."""
        items = texts if isinstance(texts, Encoded) else texts_of(texts)
        self.session.check_room(len(items))
        encoded = await asyncio.to_thread(self._read, items, task, prompt_name, prompt)
        return await self._arows(encoded, self._finish)

    def score(self, queries: Sequence[npt.ArrayLike], documents: Sequence[npt.ArrayLike]) -> Vectors:
        """Score documents for queries: of each token of a query, the greatest dot product with a token of the document,
        summed (MaxSim); or their mean, where the model was trained for that.

        Args:
            queries, documents: vectors from :meth:`embed`.

        Returns:
            (queries, documents), float32.

        Raises:
            InvalidArgument: an item is not a matrix with rows, or the dimensions differ.
        """
        return max_sim(queries, documents, mean=self._late.similarity == "meanmaxsim")

    def rank(
        self, query: str, documents: Iterable[str], *, top_k: int | None = None, progress: bool | None = None
    ) -> list[Ranked]:
        """Sort documents by their score for a query, best first.

        Args:
            query: a text.
            documents: texts, in a collection as for :meth:`isorun.Embedder.embed`.
            top_k: how many to return; ``None`` for all.
            progress: as in :meth:`embed`.

        Raises:
            InvalidFeeds, InvalidArgument: as :meth:`embed`.
        """
        items = texts_of(documents, "documents")
        queries = self.embed([checked(query, "query")], task=QUERY, progress=False)
        return ranked(items, self.score(queries, self.embed(items, task=DOCUMENT, progress=progress))[0], top_k)

    def _read(
        self, texts: Iterable[str] | Encoded, task: str | None, prompt_name: str | None, prompt: str | None
    ) -> Encoded:
        if isinstance(texts, Encoded):
            self._prompted(texts, prompt, prompt_name, task)
            if not all(isinstance(item, ScoredTokens) for item in texts.items):
                return Encoded([self._reader.read(item, None) for item in texts.items], texts.prompt)
            return texts
        encoded = self.encode(texts, task=task, prompt_name=prompt_name, prompt=prompt)
        warn_of_truncation(encoded.items, self._limit(task))
        return encoded

    def _limit(self, task: str | None) -> int | None:
        """The maximum number of tokens of a text before it is filled up."""
        lengths = {QUERY: self._late.query_length, DOCUMENT: self._late.document_length}
        length = lengths.get(task or "")
        expansion = self._late.expansion
        if task == QUERY and expansion is not None:
            length = expansion.length if expansion.strategy == "fixed" else length and max(length, expansion.length)
        changed = None if self.max_length == self._opened_length else self.max_length  # by limit_length()
        return min(filter(None, (length or self.max_length, self._positions, changed)), default=None)

    def _finish(self, output: Array, scored: Mask) -> list[Vectors]:
        chosen = scored != 0
        vectors = applied(self.settings.token_steps, output[chosen])
        return np.split(vectors, np.cumsum(chosen.sum(axis=1))[:-1])

    def _encode(self, texts: Sequence[Any], **settings: Any) -> list[Any]:
        return [self._reader.read(encoding, None) for encoding in super()._encode(texts, **settings)]

    def _feeds(self, encodings: Sequence[Tokens]) -> tuple[dict[str, npt.NDArray[Any]], Mask]:
        encoded = self.tokenizer.batch(encodings, self._columns)
        scored = np.zeros_like(encoded["attention_mask"])
        for row, item in enumerate(encodings):
            assert isinstance(item, ScoredTokens)
            encoded["attention_mask"][row, item.attended :] = 0
            scored[row, : len(item.scored)] = item.scored
        return self.feeds(encoded), scored

    def _choose(self, outputs: dict[str, int]) -> str:
        self._settings_of_tasks()
        return next((name for name in TOKENS if outputs.get(name) == 3), TOKENS[0])

    def _session_defaults(self) -> dict[str, Any]:
        expansion = self._settings_of_tasks().expansion
        if expansion is None or expansion.attend:
            return {}
        if self._padding not in (None, "keep"):
            raise InvalidArgument(
                f"padding={self._padding!r} could leave out the tokens that fill a query up, which this model computes "
                "without attending to them. Omit it"
            )
        return {"padding": "keep"}

    def _check_window(self) -> None:
        """Reject a query some of whose tokens could see none: what they would be depends on the implementation."""
        expansion, window = self._late.expansion, self.session.model_info.window
        if expansion is None or expansion.attend or window is None:
            return
        if (longest := self.tokenizer.added_tokens() + window) < expansion.length:
            raise UnsupportedModel(
                f"The model fills queries up to {expansion.length} tokens, and has layers that see {window} tokens to "
                f"each side: of a short query, some would see no token. Pass query_length={longest} or less"
            )

    def _settings_of_tasks(self) -> LateInteraction:
        if self.settings.late_interaction is None:
            raise UnsupportedModel(
                "The model was not saved by sentence-transformers' MultiVectorEncoder, PyLate or Stanford's ColBERT. "
                "For one vector of a text use isorun.Embedder"
            )
        return self.settings.late_interaction

    def _dimension(self) -> int:
        width = (self.output.shape or (None,))[-1]
        if not isinstance(width, int):
            raise InvalidModel(f"The output {self.output.name!r} must have a fixed width, got {self.output.shape}")
        return width_after(self.settings.token_steps, width, self.folder)


def _with_lengths(
    settings: LateInteraction, query: int | None, document: int | None, limit: int | None
) -> LateInteraction:
    """Settings with other lengths, and with none above a limit."""
    expansion, most = settings.expansion, _smaller(query, limit)
    is_set = expansion is not None and query is not None and expansion.strategy == "fixed"
    if expansion is not None and most is not None and (is_set or most < expansion.length):
        expansion = replace(expansion, length=most)
    return replace(
        settings,
        query_length=_smaller(query or settings.query_length, limit),
        document_length=_smaller(document or settings.document_length, limit),
        expansion=expansion,
    )


def _smaller(length: int | None, limit: int | None) -> int | None:
    return min(filter(None, (length, limit)), default=None)
