"""Sentence embeddings: texts in, vectors out."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from isorun.errors import InvalidArgument, InvalidModel, UnsupportedModel, did_you_mean
from isorun.models.pooling import normalized, pool
from isorun.models.sentences import NORMALIZE, POOLINGS, Dense, SentenceSettings
from isorun.text.encoded import Encoded
from isorun.text.inputs import checked, stream_of, texts_of
from isorun.text.model import Array, TextModel

_TOKENS = ("last_hidden_state", "token_embeddings")
_POOLED = "sentence_embedding"


class Embedder(TextModel):
    """Turns texts into vectors, as sentence-transformers would.

    ::

        with isorun.Embedder("all-MiniLM-L6-v2") as embedder:
            vectors = embedder.embed(["A man is eating food.", "A man is eating a piece of bread."])

    Padding is removed, and texts of similar length share batches. An embedder may be used from many threads at once.

    Args:
        model: the folder of a checkpoint, an ONNX file with its tokenizer beside it, or the name of a checkpoint on the
            Hugging Face hub. Settings are read from sentence-transformers' files in the folder (``modules.json`` and
            the modules' folders, dense layers included, ``sentence_bert_config.json``,
            ``config_sentence_transformers.json``), or from what ``isorun build`` kept of them in the ONNX file.
        pooling: how the vectors of a text's tokens become one: ``"mean"``, ``"cls"``, ``"max"``, ``"lasttoken"``,
            ``"weightedmean"``, ``"mean_sqrt_len_tokens"``, or several of them; ``None`` for the model's.
        normalize: scale vectors to length 1; ``None`` for what the model does.
        prompts: texts to put before a text, by name, in addition to the model's.
        default_prompt: the name of the prompt to use where none is named; ``None`` for the model's, if any.
        truncate_dim: keep that many leading dimensions, for models trained for it (Matryoshka); ``None`` for the
            model's.
        max_length: the maximum number of tokens of a text, special tokens included; ``None`` for the model's.
        batch_tokens: the maximum size of a batch, rows times its longest row; ``None`` for 4096. A text's vector does
            not depend on it, except in models such as dynamically quantized ones, whose results depend on the other
            texts of a batch: those embed one text at a time, with one warning, unless ``batch_tokens`` is given.
        session_options: arguments of :class:`isorun.Session`, such as ``backend``, ``precision`` and ``threads``.

    Raises:
        InvalidModel: there is no such model, it has no tokenizer, or nothing says how to pool its tokens.
        UnsupportedModel: the settings name a module that isorun does not have.
        FetchFailed: a download failed.
        InvalidArgument: an unknown pooling or prompt.
        IsorunError: as :class:`isorun.Session`.
    """

    def __init__(
        self,
        model: str | os.PathLike[str],
        *,
        pooling: str | Sequence[str] | None = None,
        normalize: bool | None = None,
        prompts: Mapping[str, str] | None = None,
        default_prompt: str | None = None,
        truncate_dim: int | None = None,
        max_length: int | None = None,
        batch_tokens: int | None = None,
        **session_options: Any,
    ) -> None:
        modes = (pooling,) if isinstance(pooling, str) else tuple(pooling or ())
        for mode in modes:
            if mode not in POOLINGS:
                raise InvalidArgument(f"Invalid pooling {mode!r}{did_you_mean(mode, POOLINGS)}")
        if truncate_dim is not None and truncate_dim < 1:
            raise InvalidArgument(f"truncate_dim must be at least 1, got {truncate_dim}")
        super().__init__(model, partial(output_by_token, pools=bool(modes)), max_length, batch_tokens, session_options)
        try:
            settings = self.settings
            self.pooling = modes or settings.pooling
            self.prompts = {**settings.prompts, **(prompts or {})}
            self.default_prompt = default_prompt or settings.default_prompt
            self._include_prompt = settings.include_prompt
            self._steps = _steps(settings, normalize)
            self._normalize_last = normalize is True
            self._truncate_dim = truncate_dim or settings.truncate_dim
            self.dimension = self._dimension(truncate_dim)
            self._prompt(None, self.default_prompt)
        except BaseException:
            self.close()
            raise

    @property
    def normalizes(self) -> bool:
        """Whether vectors have length 1 where the caller does not say."""
        return self._normalize_last or (NORMALIZE in self._steps[-1:] and self._truncate_dim is None)

    def encode(  # type: ignore[override]  # texts are not pairs
        self, texts: Iterable[str], *, prompt_name: str | None = None, prompt: str | None = None
    ) -> Encoded:
        """The tokens of texts with their prompt, cut to ``max_length``: :meth:`embed` and :meth:`aembed` accept them in
        place of the texts, which are then tokenized once.

        Args:
            texts, prompt_name, prompt: as in :meth:`embed`.

        Raises:
            InvalidFeeds, InvalidArgument: as :meth:`embed`.
        """
        prefix = self._prompt(prompt, prompt_name)
        return self._encoded([prefix + text for text in texts_of(texts)], prefix)

    def embed(
        self,
        texts: Iterable[str] | Encoded,
        *,
        prompt_name: str | None = None,
        prompt: str | None = None,
        normalize: bool | None = None,
        truncate_dim: int | None = None,
        progress: bool | None = None,
    ) -> Array:
        """Embed texts.

        Args:
            texts: any number of texts: a list, a tuple, an iterator, a one-dimensional array, or a column of pandas,
                Polars or PyArrow, which is read by position. Or the result of :meth:`encode` or :meth:`encode_ids`.
            prompt_name: the name of the prompt to put before each text; ``None`` for the default, if there is one.
            prompt: the prompt itself, instead of a name.
            normalize: scale these vectors to length 1, or not; ``None`` as the embedder does.
            truncate_dim: keep that many leading dimensions of these vectors; ``None`` for :attr:`dimension`.
            progress: show a progress bar on standard error; ``None``: on a terminal, if it takes more than two seconds.

        Returns:
            (number of texts, :attr:`dimension` or ``truncate_dim``), float32, in the order of the texts.

        Raises:
            InvalidFeeds: an item of ``texts`` is not a str, or not valid Unicode.
            InvalidArgument: ``texts`` is a single text, a table or a collection without order, there is no prompt of
                that name, a prompt has no effect on tokens, or ``truncate_dim`` exceeds :attr:`dimension`.

        Warns:
            TruncationWarning: texts exceed ``max_length`` and were cut.
        """
        items, prefix = self._prompted(texts, prompt, prompt_name)
        width = self._width(truncate_dim)
        return self._collect(items, self._finisher(prefix, normalize, truncate_dim), (width,), progress)

    def embed_iter(
        self, texts: Iterable[str], *, prompt_name: str | None = None, prompt: str | None = None
    ) -> Iterator[Array]:
        """Embed a stream of texts of any length: read 4096 at a time, as far ahead as vectors are taken.

        Args:
            texts, prompt_name, prompt: as in :meth:`embed`.

        Returns:
            An iterator of the vector of each text, (:attr:`dimension`,), float32, in order.

        Raises:
            InvalidFeeds, InvalidArgument: as :meth:`embed`; what is wrong with a text, when the iterator reaches it.
        """
        prefix = self._prompt(prompt, prompt_name)
        prefixed = (prefix + text for text in stream_of(texts))
        finish = self._finisher(prefix)
        return _in_order(
            (batch.positions, finish(output, batch.mask)) for batch, (output,) in self._run(self._batches(prefixed))
        )

    async def aembed(
        self,
        texts: Iterable[str] | Encoded,
        *,
        prompt_name: str | None = None,
        prompt: str | None = None,
        normalize: bool | None = None,
        truncate_dim: int | None = None,
    ) -> Array:
        """Embed texts without blocking the event loop; concurrent callers share the machine and, where that pays,
        batches. Arguments, result and errors are those of :meth:`embed`, and ``QueueFull``."""
        items, prefix = self._prompted(texts, prompt, prompt_name)
        width = self._width(truncate_dim)
        return await self._arun(items, self._finisher(prefix, normalize, truncate_dim), (width,))

    def prompt_named(self, *names: str) -> str | None:
        """The first of some names that has a prompt; ``None`` if there is none, for the default."""
        return next((name for name in names if name in self.prompts), None)

    def _prompted(
        self, texts: Iterable[str] | Encoded, prompt: str | None, name: str | None
    ) -> tuple[list[str] | Encoded, str]:
        """Texts with their prompt, and the prompt."""
        if isinstance(texts, Encoded):
            if prompt is not None or name is not None:
                raise InvalidArgument("A prompt has no effect on encoded texts. Pass it to encode()")
            return texts, texts.prompt
        prefix = self._prompt(prompt, name)
        return [prefix + text for text in texts_of(texts)], prefix

    def _width(self, truncate_dim: int | None) -> int:
        if truncate_dim is None:
            return self.dimension
        if (
            not isinstance(truncate_dim, int)
            or isinstance(truncate_dim, bool)
            or not 1 <= truncate_dim <= self.dimension
        ):
            raise InvalidArgument(
                f"truncate_dim must be from 1 to {self.dimension}, the embedder's dimension, got {truncate_dim!r}"
            )
        return truncate_dim

    def _prompt(self, prompt: str | None, name: str | None) -> str:
        if prompt is not None:
            return checked(prompt, "prompt")
        name = name or self.default_prompt
        if name is not None and name not in self.prompts:
            raise InvalidArgument(f"Unknown prompt {name!r}{did_you_mean(name, self.prompts)}")
        return "" if name is None else self.prompts[name]

    def _finisher(self, prefix: str, normalize: bool | None = None, truncate_dim: int | None = None) -> Any:
        """From a batch's output and mask to vectors."""
        skipped = self.prompt_tokens(prefix) if prefix and not self._include_prompt else 0
        return partial(self._finish, skipped=skipped, normalize=normalize, dimensions=truncate_dim)

    def _finish(
        self,
        output: Array,
        mask: npt.NDArray[np.int64],
        skipped: int,
        normalize: bool | None,
        dimensions: int | None,
    ) -> Array:
        vectors = output
        if output.ndim == 3:
            if skipped:
                mask = mask.copy()
                mask[:, :skipped] = 0
            vectors = pool(output, mask, self.pooling)
        steps = self._steps if normalize is not False else [step for step in self._steps if isinstance(step, Dense)]
        for step in steps:
            vectors = step(vectors) if isinstance(step, Dense) else normalized(vectors)
        vectors = vectors[:, : dimensions or self._truncate_dim]
        return normalized(vectors) if (self._normalize_last if normalize is None else normalize) else vectors

    def _dimension(self, truncate_dim: int | None) -> int:
        shape = self.output.shape or ()
        if len(shape) == 3 and not self.pooling:
            raise InvalidModel(
                f"Cannot tell how to pool the tokens of this model: {self.folder} has no modules.json and no "
                "1_Pooling/config.json. Pass pooling='mean' or another"
            )
        if len(shape) not in (2, 3) or not isinstance(shape[-1], int):
            raise InvalidModel(f"The output {self.output.name!r} must have a fixed width, got shape {shape}")
        width = shape[-1] * (len(self.pooling) if len(shape) == 3 else 1)
        for step in self._steps:
            if isinstance(step, Dense):
                if step.weight.shape[1] != width:
                    raise InvalidModel(
                        f"A dense layer of {self.folder} expects {step.weight.shape[1]} values, got {width}"
                    )
                width = len(step.weight)
        if truncate_dim is not None and truncate_dim > width:
            raise InvalidArgument(f"truncate_dim must be at most {width}, the model's dimension, got {truncate_dim}")
        return min(self._truncate_dim or width, width)


def _steps(settings: SentenceSettings, normalize: bool | None) -> tuple[Dense | str, ...]:
    if settings.saved_as == "CrossEncoder":  # sentence-transformers would ignore its modules
        raise UnsupportedModel(
            "The model's config_sentence_transformers.json has the model_type 'CrossEncoder'. Use isorun.CrossEncoder"
        )
    if "dense" in settings.steps:
        raise InvalidModel(
            "The checkpoint of this ONNX file has dense layers after pooling, which an older isorun did not keep. "
            "Build it again: isorun build"
        )
    if normalize is False:
        return tuple(step for step in settings.steps if step != NORMALIZE)
    return settings.steps


def output_by_token(outputs: dict[str, int], *, pools: bool) -> str:
    """The output to compute: a vector for each token, or for each text if the model pools itself."""
    if not outputs:
        return _TOKENS[0]  # of a checkpoint's graph
    by_token = [name for name, rank in outputs.items() if rank == 3]
    named = [name for name in _TOKENS if name in by_token]
    if not pools and not named and outputs.get(_POOLED) == 2:
        return _POOLED
    if named or len(by_token) == 1:
        return (named or by_token)[0]
    raise InvalidModel(
        f"Cannot tell which output has a vector for each token: expected {' or '.join(_TOKENS)}, or a single output of "
        f"rank 3, got {', '.join(outputs)}. Pass outputs=[NAME]"
    )


def _in_order(batches: Iterable[tuple[list[int], Array]]) -> Iterator[Array]:
    """The rows of batches, by their positions."""
    waiting: dict[int, Array] = {}
    following = 0
    for positions, rows in batches:
        waiting.update(zip(positions, rows, strict=True))
        while following in waiting:
            yield waiting.pop(following)
            following += 1
