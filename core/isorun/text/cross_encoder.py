"""Scores of pairs of texts, and classes of texts."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from isorun.errors import InvalidFeeds, UnsupportedModel
from isorun.graph.tasks import SEQUENCE
from isorun.models import checkpoint
from isorun.models.activations import ACTIVATIONS
from isorun.models.activations import softmax as probabilities
from isorun.models.chat_template import ChatTemplate, reject_beside, yes_or_no
from isorun.models.dense import activation_named
from isorun.models.sentence_settings import SentenceSettings
from isorun.models.tokenizer import Text, Tokens
from isorun.system.arguments import check_choice, check_flag
from isorun.system.cleanup import closed_on_error
from isorun.text.encoded import Encoded, TokenIds
from isorun.text.heads import LOGITS, head_outputs, labels_of, reject_modules
from isorun.text.inputs import checked, texts_of
from isorun.text.model import Array, TextModel
from isorun.text.ranked import Ranked, ranked


class CrossEncoder(TextModel):
    """Scores pairs of texts, as a reranker does, or classifies texts or pairs.

    A causal reranker, such as Qwen3-Reranker, reads a pair in its chat template. Its score is the logit of a word at
    the end, less that of another one: those that ``LogitScore`` of sentence-transformers names, or "yes" and "no".

    ::

        with isorun.CrossEncoder("cross-encoder/ms-marco-MiniLM-L6-v2") as encoder:
            for document in encoder.rank("How many people live in Berlin?", documents):
                print(document.score, document.text)

    Args:
        model: a checkpoint's folder or name, or an ONNX file, as for :class:`isorun.Embedder`; its output is
            ``logits``.
        activation: applied to the logits: ``"Sigmoid"``, ``"Identity"``, ``"Tanh"`` or ``"ReLU"``; ``None`` for the
            model's own, or else the sigmoid for one label and nothing for several.
        prompt: the text before each text, or before the first of a pair; of a causal reranker, the instruction.
            ``None`` for the model's, if it has one.
        max_length, batch_tokens, session_options: as for :class:`isorun.Embedder`.

    Attributes:
        labels: the names of the classes in ``config.json``; numbers if it has none.

    Raises:
        InvalidModel: there is no such model, or it has no tokenizer or no logits.
        InvalidArgument: an unknown activation.
        IsorunError: as :class:`isorun.Session`.
    """

    reads_pairs = True
    reads_one_token = True

    def __init__(
        self,
        model: str | os.PathLike[str],
        *,
        activation: str | None = None,
        prompt: str | None = None,
        max_length: int | None = None,
        batch_tokens: int | None = None,
        **session_options: Any,
    ) -> None:
        if activation is not None:
            _named(activation)
        super().__init__(model, max_length=max_length, batch_tokens=batch_tokens, **session_options)
        with closed_on_error(self):
            self.labels: list[str] = labels_of(self.settings, self.output.shape or (), "{}")
            self._activation = _activation(activation, self.settings, len(self.labels))
            self._prompt = self.settings.prompt if prompt is None else checked(prompt, "prompt")
            self._ending = self._template.ending(self.tokenizer, self._prompt) if self._template else []

    def predict(
        self,
        texts: Iterable[Text] | Encoded,
        *,
        softmax: bool = False,
        activation: str | None = None,
        progress: bool | None = None,
    ) -> Array:
        """Score pairs, or texts.

        Args:
            texts: pairs (tuples or lists of two texts), or texts, in a collection as for :meth:`isorun.Embedder.embed`.
                A list of two str is two texts; a tuple of two str is rejected, as it could be a pair. Or the result
                of :meth:`encode`.
            softmax: apply the softmax over several labels.
            activation: for these scores, as for the class; ``None`` for the encoder's.
            progress: as in :meth:`isorun.Embedder.embed`.

        Returns:
            float32: (number of texts,) for a model with one label, otherwise (number of texts, labels).

        Raises:
            InvalidFeeds: an item is neither a str nor a pair of str, or not valid Unicode.
            InvalidArgument: ``texts`` is a single text or pair, a table or a collection without order.
        """
        scores = self._collect(self._items_or_tokens(texts), self._finisher(activation), (len(self.labels),), progress)
        return self._shaped(scores, softmax=softmax)

    async def apredict(
        self, texts: Iterable[Text] | Encoded, *, softmax: bool = False, activation: str | None = None
    ) -> Array:
        """As :meth:`predict`, without blocking the event loop."""
        items = self._items_or_tokens(texts)
        return self._shaped(await self._arun(items, self._finisher(activation), (len(self.labels),)), softmax=softmax)

    def rank(
        self, query: str, documents: Iterable[str], *, top_k: int | None = None, progress: bool | None = None
    ) -> list[Ranked]:
        """Sort documents by their score for a query, best first.

        Args:
            query: a text.
            documents: texts, in a collection as for :meth:`isorun.Embedder.embed`.
            top_k: how many to return; ``None`` for all.
            progress: as in :meth:`predict`.

        Raises:
            UnsupportedModel: the model has several labels.
            InvalidFeeds, InvalidArgument: as :meth:`predict`.
        """
        pairs = self._pairs(query, documents)
        return ranked([text for _, text in pairs], self.predict(pairs, progress=progress), top_k)

    async def arank(self, query: str, documents: Iterable[str], *, top_k: int | None = None) -> list[Ranked]:
        """As :meth:`rank`, without blocking the event loop."""
        pairs = self._pairs(query, documents)
        return ranked([text for _, text in pairs], await self.apredict(pairs), top_k)

    def _pairs(self, query: str, documents: Iterable[str]) -> list[tuple[str, str]]:
        if len(self.labels) != 1:
            raise UnsupportedModel(
                f"rank() requires a model with one label, got one with {len(self.labels)}. Use predict()"
            )
        query = checked(query, "query")
        return [(query, document) for document in texts_of(documents, "documents")]

    def _completed(self, settings: SentenceSettings) -> SentenceSettings:
        template, tokenizer = None, self.tokenizer
        if settings.logit_score is not None:
            template = ChatTemplate.beside(tokenizer, settings.chat_template)
        elif self.from_checkpoint and not self.modules.of(None):
            kind = checkpoint.causal_kind(self.folder)
            if kind is None:
                reject_beside(tokenizer, "a classifier")
            if kind not in (None, checkpoint.CAUSAL[0]):
                raise UnsupportedModel(
                    f"{self.folder} has no modules.json, which names the words of a causal reranker's score: without "
                    f"it, model_type must be {checkpoint.CAUSAL[0]!r}, got {kind!r}. Save it with sentence-transformers"
                )
            if kind is not None:
                template, words = yes_or_no(tokenizer)
                settings = replace(settings, logit_score=words)
        tokenizer.adds_special_tokens = template is None
        self._template = template
        return settings

    def _choose(self, outputs: dict[str, int]) -> list[str]:
        if self._template is not None:
            return [LOGITS]
        return head_outputs(self.folder, outputs, SEQUENCE, instead="For vectors of texts use Embedder")

    def _encodings(self, texts: Sequence[Text], max_length: int | None, **settings: Any) -> list[Any]:
        if self._template is not None:
            rendered = [self._rendered(self._template, text, position) for position, text in enumerate(texts)]
            encodings = super()._encodings(rendered, max_length, **settings)
            return [self._ended(encoding) if encoding.overflowing else encoding for encoding in encodings]
        if self._prompt:
            texts = [self._prompted(text) for text in texts]
        return super()._encodings(texts, max_length, **settings)

    def _rendered(self, template: ChatTemplate, text: Text, position: int) -> str:
        if isinstance(text, str):
            raise InvalidFeeds(f"Text {position} must be a pair (query, document) for a causal reranker, got a str")
        return template.render(text, self._prompt)

    def _ended(self, encoding: Tokens) -> TokenIds:
        """The tokens of a text that was cut, with the template's end in place of the last ones."""
        ending = self._ending[-len(encoding.ids) :]
        ids = [*encoding.ids[: len(encoding.ids) - len(ending)], *ending]
        return TokenIds(ids, encoding.type_ids, encoding.overflowing)

    def _prompted(self, text: Text) -> Text:
        if isinstance(text, tuple) and len(text) == 2 and isinstance(text[0], str):
            return (self._prompt + text[0], text[1])
        return self._prompt + text if isinstance(text, str) else text

    def _finisher(self, activation: str | None) -> Callable[[Array, npt.NDArray[np.int64]], Array]:
        apply = self._activation if activation is None else _named(activation)
        return lambda output, _: apply(output)

    def _shaped(self, scores: Array, *, softmax: bool) -> Array:
        softmax = check_flag(softmax, "softmax", optional=True)
        if len(self.labels) == 1:
            return scores[:, 0]
        return probabilities(scores) if softmax else scores


def _named(activation: str) -> Callable[[Array], Array]:
    check_choice(activation, "activation", ACTIVATIONS)
    return ACTIVATIONS[activation]


def _activation(name: str | None, settings: SentenceSettings, labels: int) -> Callable[[Array], Array]:
    reject_modules(settings)
    if name is None and settings.activation:
        name = activation_named(settings.activation, "The cross-encoder's settings", sloped=False)
    return ACTIVATIONS[name or ("Sigmoid" if labels == 1 else "Identity")]
