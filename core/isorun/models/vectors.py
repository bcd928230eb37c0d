"""The vectors of texts from a model's outputs, as an embedder computes them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from isorun.errors import InvalidModel, TokenizerError, UnsupportedModel
from isorun.models.dense import Layer, WordWeights
from isorun.models.pooling import Floats, normalized, pool
from isorun.models.sentence_settings import SentenceSettings
from isorun.models.source import ModelSource
from isorun.models.text_reader import TextReader, settings_of
from isorun.types import Feeds, ModelInfo

TOKENS = ("last_hidden_state", "token_embeddings")
"""The outputs with a vector for each token, by the names of those who export models."""
POOLED = "sentence_embedding"
"""The output with a vector for each text."""


class TextVectors:
    """Makes vectors of the texts in a batch.

    Args:
        settings: how token vectors become one vector.
        info: the model.
        skipped: how many tokens at the start of a text do not count in pooling (:attr:`TextReader.skipped`).

    Attributes:
        lack: why the model makes no vectors, if it does not.
    """

    def __init__(self, settings: SentenceSettings, info: ModelInfo, skipped: int = 0) -> None:
        self._settings, self._info, self.skipped = settings, info, skipped
        names = [output.name for output in info.outputs]
        weighted = any(isinstance(step, WordWeights) for step in settings.token_steps)  # by token ids: not an output's
        wanted = (POOLED,) if weighted or not settings.pooling else (POOLED, *TOKENS)
        self._output = next((names.index(name) for name in wanted if name in names), None)
        unnamed = f"no output is named {' or '.join(wanted)}"
        self.lack = unnamed if settings.pooling else "nothing says how to pool tokens"

    def __bool__(self) -> bool:
        """Whether the model makes vectors."""
        return self._output is not None

    def __call__(self, outputs: Sequence[Any], feeds: Feeds) -> np.ndarray:
        """The vectors of a batch: (rows with a real token, width)."""
        assert self._output is not None
        vectors = np.asarray(outputs[self._output], np.float32)
        fed = self._info.attended(feeds)
        mask = np.ones(vectors.shape[:2], np.int64) if fed is None else np.asarray(fed)
        if vectors.ndim == 3:
            pooled = mask.copy()
            pooled[:, : self.skipped] = 0
            vectors = pool(applied(self._settings.token_steps, vectors), pooled, self._settings.pooling)
        vectors = applied(self._settings.steps, vectors)[:, : self._settings.truncate_dim]
        return vectors if fed is None else vectors[(mask != 0).any(axis=1)]

    @classmethod
    def of(cls, source: ModelSource, info: ModelInfo, skipped: int | None = None) -> TextVectors:
        """Those of a model, by what ``isorun build`` kept in its file or what is beside it.

        Args:
            source, info: the model.
            skipped: as for the class; ``None`` for the prompt's tokens, for which the tokenizer is read.

        Raises:
            InvalidModel, UnsupportedModel: as :func:`isorun.models.sentences.read`, or the default prompt is unknown.
        """
        settings = settings_of(source.path, info.metadata.custom_metadata_map)
        if skipped is None:
            skipped = 0
            if settings.prompt and not settings.include_prompt:
                with contextlib.suppress(TokenizerError):  # then the model is fed no texts
                    skipped = TextReader(source.path, info, settings).skipped
        return cls(settings, info, skipped)

    @classmethod
    def find(cls, source: ModelSource, info: ModelInfo) -> tuple[TextVectors | None, str]:
        """Those of a model; ``None``, and why, if it makes no vectors."""
        try:
            vectors = cls.of(source, info)
        except (InvalidModel, UnsupportedModel) as error:  # what an embedder would report
            return None, str(error)
        return (vectors, "") if vectors else (None, vectors.lack)


def applied(steps: Iterable[Layer | str], vectors: Floats) -> Floats:
    """What steps make of vectors (..., width)."""
    for step in steps:
        assert not isinstance(step, WordWeights), "the pooling applies them"
        vectors = normalized(vectors) if isinstance(step, str) else step(vectors)
    return vectors
