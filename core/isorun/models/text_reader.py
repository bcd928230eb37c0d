"""From a text to a model's tokens, as the files of the model say: for embedders, and for what calibrates and judges
the models that they run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from isorun.errors import InvalidModel, UnsupportedModel
from isorun.models import sentence_settings, sentences
from isorun.models.sentence_settings import SentenceSettings
from isorun.models.tokenizer import Tokenizer, places_of
from isorun.parity.samples import fixed_size
from isorun.types import ModelInfo


class TextReader:
    """Converts texts to tokens as an :class:`isorun.Embedder` without arguments does.

    Args:
        model: the ONNX file or the folder of the checkpoint.
        info: the model.
        settings: how it reads texts; ``None`` for :func:`usable_settings`.

    Attributes:
        prompt: the text that is put before each text.

    Raises:
        InvalidModel, UnsupportedModel: there is no tokenizer that isorun can read.
    """

    def __init__(self, model: Path, info: ModelInfo, settings: SentenceSettings | None = None) -> None:
        if settings is None:
            settings = usable_settings(model, info)
        self.prompt: str = settings.prompt
        self._include_prompt = settings.include_prompt
        self._columns = fixed_size(info.required, 1)
        self._tokenizer = tokenizer_of(model, settings)
        self._tokenizer.limit = limit_of(settings, self._tokenizer, *info.limits.values(), self._columns)

    @property
    def skipped(self) -> int:
        """How many tokens at the start of a text, those of a prompt, do not count in pooling."""
        if self._include_prompt or not self.prompt:
            return 0
        return self._tokenizer.leading_tokens(self.prompt, self._tokenizer.limit)

    def encode(self, texts: Sequence[str], columns: int | None = None) -> dict[str, npt.NDArray[np.int64]]:
        """The tokens of texts with the prompt: :meth:`isorun.models.tokenizer.Tokenizer.encode`.

        Args:
            texts: one or more.
            columns: of the batch; ``None`` for those that the model fixes, or of the longest text.
        """
        return self._tokenizer.encode([self.prompt + text for text in texts], columns or self._columns)


def settings_of(model: Path, metadata: Mapping[str, str]) -> SentenceSettings:
    """How a model reads texts: what ``isorun build`` kept in its file, or what is beside it.

    Args:
        model: the ONNX file, or the folder of a checkpoint.
        metadata: of the file.

    Raises:
        InvalidModel, UnsupportedModel: as :func:`isorun.models.sentences.read`.
    """
    if model.is_dir():
        return sentences.read(model)
    kept = metadata.get(sentence_settings.METADATA)
    return SentenceSettings.from_json(kept, model) if kept else sentences.read(settings_folder(model))


def usable_settings(model: Path, info: ModelInfo) -> SentenceSettings:
    """The settings of a model; the defaults if isorun cannot read them. Vectors are not made of such a model, so that
    the tokenizer alone decides what its tokens are."""
    try:
        settings = settings_of(model, info.metadata.custom_metadata_map)
        _ = settings.prompt
    except (InvalidModel, UnsupportedModel):
        return SentenceSettings()
    return settings


def tokenizer_of(
    model: Path, settings: SentenceSettings, route: str | None = None, *, special_tokens: bool = True
) -> Tokenizer:
    """The tokenizer of a model, as its settings say.

    Args:
        model: the ONNX file, or the folder of a checkpoint.
        settings: how it reads texts.
        route: the route of a model with a router; ``None`` for the default one.
        special_tokens: whether texts get special tokens; a model of static vectors reads none.

    Raises:
        InvalidModel: as :meth:`Tokenizer.beside`.
    """
    return Tokenizer.beside(
        sentences.transformer_folder(model, route) if model.is_dir() else model,
        lower_case=settings.lower_case,
        special_tokens=special_tokens and not settings.static,
        plain=settings.static,
    )


def limit_of(settings: SentenceSettings, tokenizer: Tokenizer, *limits: int | None) -> int | None:
    """The maximum number of tokens of a text that the settings or the tokenizer state, within a graph's limits."""
    stated = settings.max_tokens or tokenizer.settings.limit
    return min((limit for limit in (stated, *limits) if limit), default=None)


def settings_folder(model: Path) -> Path:
    """The folder with a text model's settings: the file's own, or the one above, where Optimum leaves them: it has
    ``modules.json``, or ``config.json`` with the tokenizer that the model is read with."""
    own, above = model.parent, model.parent.parent
    for folder in (own, above):
        if (folder / "modules.json").is_file():
            return folder
    if (own / "config.json").is_file() or not (above / "config.json").is_file():
        return own
    tokenizer = next((place for place in places_of(model) if place.is_file()), None)
    return above if tokenizer is not None and tokenizer.parent == above else own
