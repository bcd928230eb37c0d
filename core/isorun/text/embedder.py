"""Sentence embeddings: texts in, vectors out."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from numbers import Integral
from typing import Any

import numpy as np
import numpy.typing as npt

from isorun.errors import InvalidArgument, InvalidFeeds, InvalidModel
from isorun.models.dense import Layer, WordWeights
from isorun.models.pooling import normalized, pool
from isorun.models.sentence_settings import NORMALIZE, POOLINGS
from isorun.models.sentences import MEANS
from isorun.models.tokenizer import Tokens
from isorun.models.vectors import POOLED, TOKENS, applied
from isorun.system.arguments import (
    check_choice,
    check_count,
    check_flag,
    check_text,
    checked_strings,
    is_number,
    number_error,
)
from isorun.system.cleanup import closed_on_error
from isorun.text import parts, vector_types
from isorun.text.encoded import Encoded
from isorun.text.identity import Compatibility, VectorIdentity, compared, digest_of, pack, probe_texts, settings_in
from isorun.text.inputs import checked, stream_of
from isorun.text.model import Array
from isorun.text.prompted import PromptedModel
from isorun.text.steps import in_float32, output_by_token, steps_after, width_after


def _described(step: Layer | str) -> Iterator[Any]:
    """What a layer is, for a digest."""
    yield step if isinstance(step, str) else step.kind
    for name, tensor in () if isinstance(step, str) else step.tensors.items():
        yield from (name, np.shape(tensor), tensor)


class Embedder(PromptedModel):
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
        task: what the texts are, for a model with a router, such as ``"query"`` or ``"document"``: an embedder runs one
            route. It also selects the prompt of that name. ``None`` for the default of both.
        prompts: texts to put before a text, by name, in addition to the model's.
        default_prompt: the name of the prompt to use where none is named; ``None`` for the model's, if any.
        truncate_dim: keep that many leading dimensions, for models trained for it (Matryoshka); ``None`` for the
            model's.
        max_length: the maximum number of tokens of a text, special tokens included; ``None`` for the model's.
        quantize: the type of the vectors: ``"int8"`` or ``"uint8"``, a byte for a value, or ``"binary"`` or
            ``"ubinary"``, a bit; ``None`` for float32. As ``quantize_embeddings`` of sentence-transformers.
        ranges: for ``"int8"`` and ``"uint8"``: (2, dimension), the least and the greatest value of each dimension in
            vectors of typical texts. An index keeps them: other ranges make other vectors.
        batch_tokens: the maximum size of a batch, rows times its longest row; ``None`` for 4096. A text's vector does
            not depend on it, except in models such as dynamically quantized ones, whose results depend on the other
            texts of a batch: those embed one text at a time, with one warning, unless ``batch_tokens`` is given.
        session_options: arguments of :class:`isorun.Session`, such as ``backend``, ``precision`` and ``threads``.

    Raises:
        InvalidModel: there is no such model, it has no tokenizer, or nothing says how to pool its tokens.
        UnsupportedModel: the settings name a module that isorun does not have.
        FetchFailed: a download failed.
        InvalidArgument: an unknown pooling or prompt, or the model has no route for the task.
        IsorunError: as :class:`isorun.Session`.
    """

    def __init__(
        self,
        model: str | os.PathLike[str],
        *,
        pooling: str | Sequence[str] | None = None,
        normalize: bool | None = None,
        task: str | None = None,
        prompts: Mapping[str, str] | None = None,
        default_prompt: str | None = None,
        truncate_dim: int | None = None,
        max_length: int | None = None,
        quantize: str | None = None,
        ranges: npt.ArrayLike | None = None,
        batch_tokens: int | None = None,
        **session_options: Any,
    ) -> None:
        listed = [pooling] if isinstance(pooling, str) else pooling
        modes = tuple(checked_strings(() if listed is None else listed, "pooling"))
        for mode in modes:
            check_choice(mode, "pooling", POOLINGS)
        truncate_dim = check_count(truncate_dim, "truncate_dim", optional=True)
        normalize = check_flag(normalize, "normalize", optional=True)
        check_text(task, "task", optional=True)
        check_text(quantize, "quantize", optional=True)
        self.task = task
        self._modes = modes
        super().__init__(model, max_length=max_length, batch_tokens=batch_tokens, **session_options)
        with closed_on_error(self):
            settings = self.settings
            self.pooling: tuple[str, ...] = modes or settings.pooling
            self.reads_one_token = "cls" in self.pooling
            self._set_prompts(prompts, default_prompt)
            self._include_prompt = settings.include_prompt
            self._steps = steps_after(settings, normalize)
            if self.output.name == POOLED and self._is_foreign:  # as Optimum writes it, after all layers
                self._steps = tuple(step for step in self._steps if step == NORMALIZE)
            layers = settings.token_steps
            if modes and len(self.output.shape or ()) == 2 and not (settings.static and modes == ("mean",)):
                raise InvalidArgument(
                    f"pooling={'+'.join(modes)!r} has no effect: the model pools its tokens' vectors in its graph, as "
                    f"{self.output.name!r}. Omit it"
                )
            self._word_weights = next((step for step in layers if isinstance(step, WordWeights)), None)
            if self._word_weights is not None and (others := [mode for mode in modes if mode not in MEANS]):
                raise InvalidArgument(
                    f"pooling must be {' or '.join(MEANS)} for a model with WordWeights, got {others[0]!r}"
                )
            self._token_steps = [step for step in layers if not isinstance(step, WordWeights)]
            self._normalize_last = normalize is True
            self._truncate_dim = truncate_dim or settings.truncate_dim
            self.dimension: int = self._dimension(truncate_dim)
            self._kind = quantize
            self._ranges = vector_types.check(quantize, ranges, self.dimension)

    @property
    def normalizes(self) -> bool:
        """Whether vectors have length 1 where the caller does not say."""
        return self._normalize_last or (NORMALIZE in self._steps[-1:] and self._truncate_dim is None)

    @property
    def identity(self) -> VectorIdentity:
        """What the vectors of this embedder depend on, with its default prompt."""
        provenance = self.session.provenance
        versions = (f"{name} {version}" for name, version in sorted(provenance.versions.items()) if name != "isorun")
        is_told = self._steps == (NORMALIZE,) and self._truncate_dim is None  # by `normalized`
        steps = [*self.settings.token_steps, *(() if is_told else ("pooled", *self._steps) if self._steps else ())]
        layers = [part for step in steps for part in _described(step)]
        details = provenance.details
        quantizer = details.get("graph", {}).get("int8")
        cut = self.tokenizer.settings.truncation_side
        return VectorIdentity(
            model=self._digest or provenance.fingerprint,
            tokenizer=digest_of(self.tokenizer.library.to_str(), *(["left"] if cut == "left" else [])),
            pooling="+".join(self.pooling) if len(self.output.shape or ()) == 3 else "",
            layers=digest_of(*layers) if layers else "",
            normalized=self.normalizes,
            dimension=self.dimension,
            prompt=self._prompt(None, None),
            include_prompt=self._include_prompt,
            max_length=self.max_length,
            precision=provenance.precision,
            backend=provenance.backend,
            version=", ".join(versions),
            quantizer=json.dumps(quantizer, sort_keys=True) if quantizer else "",
            settings=settings_in(details, self._batch_tokens),
            stored=" ".join(filter(None, (self._kind, "" if self._ranges is None else digest_of(self._ranges)))),
        )

    def vector_record(self) -> dict[str, Any]:
        """:attr:`identity` as plain data for JSON. Its ``probe`` are the vectors of a few hundred texts that come with
        isorun, as :meth:`embed` returns them: by them, :meth:`compatible_with` measures what mixing vectors costs."""
        return {**self.identity.as_dict(), "probe": pack(self.embed(self.encode(probe_texts()), progress=False))}

    def compatible_with(self, record: Mapping[str, Any]) -> Compatibility:
        """Whether this embedder's vectors may be searched with those of a record.

        Args:
            record: from :meth:`vector_record`, such as the file that ``isorun embed`` writes beside vectors. Without
                ``probe``, a difference in precision is ``"different"``, since the loss cannot be measured.

        Raises:
            InvalidArgument: it is not such a record.
        """
        verdict = compared(self.identity.as_dict(), record)
        return compared(self.vector_record(), record) if verdict.unmeasured else verdict

    def encode_ids(self, ids: Iterable[Sequence[int]]) -> Encoded:
        """The tokens of texts from their ids, special tokens included: the model reads them as they are, all of type 0.

        Raises:
            InvalidFeeds: an item is not a list of token ids, is empty, or has more than ``max_length``; or the pooling
                of the model leaves out the tokens of its prompts (``include_prompt: false``).
        """
        if not self._include_prompt and len(self.output.shape or ()) == 3 and any(self.prompts.values()):
            raise InvalidFeeds(
                "Token ids do not tell which of them belong to a prompt, and the pooling of this model leaves out its "
                "prompts (include_prompt: false). Pass texts"
            )
        return super().encode_ids(ids)

    def embed(
        self,
        texts: Iterable[str] | Encoded,
        *,
        prompt_name: str | None = None,
        prompt: str | None = None,
        normalize: bool | None = None,
        truncate_dim: int | None = None,
        progress: bool | None = None,
    ) -> npt.NDArray[Any]:
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
            (number of texts, :attr:`dimension` or ``truncate_dim``), float32, in the order of the texts. With
            ``quantize``, int8 or uint8; of bits, an eighth as wide.

        Raises:
            InvalidFeeds: an item of ``texts`` is not a str, or not valid Unicode.
            InvalidArgument: ``texts`` is a single text, a table or a collection without order, there is no prompt of
                that name, a prompt has no effect on tokens, or ``truncate_dim`` exceeds :attr:`dimension`.

        Warns:
            TruncationWarning: texts exceed ``max_length`` and were cut.
        """
        items, prefix = self._prompted(texts, prompt, prompt_name)
        width = self._width(truncate_dim)
        return self._stored(self._collect(items, self._finisher(prefix, normalize, truncate_dim), (width,), progress))

    def _stored(self, vectors: Array) -> npt.NDArray[Any]:
        """Vectors in the type that was requested."""
        return vectors if self._kind is None else vector_types.quantized(vectors, self._kind, self._ranges)

    def embed_parts(
        self,
        document: str,
        spans: Iterable[Sequence[int]],
        *,
        prompt_name: str | None = None,
        prompt: str | None = None,
        normalize: bool | None = None,
        truncate_dim: int | None = None,
    ) -> npt.NDArray[Any]:
        """Embed parts of a document that the model reads as a whole, so that each vector knows the context ("late
        chunking": https://arxiv.org/abs/2409.04701).

        Args:
            document: the text.
            spans: of each part, the positions in the document of its first character and after its last one. They may
                overlap, in any order.
            prompt_name, prompt, normalize, truncate_dim: as in :meth:`embed`; the prompt comes before the document.

        Returns:
            (number of spans, :attr:`dimension` or ``truncate_dim``): of each part, the pooled states of the tokens from
            the first to the last that share a character with it. Special tokens and the prompt belong to no part.

        Raises:
            InvalidArgument: a span is empty or outside the document, or as in :meth:`embed`.
            InvalidFeeds: a part has no token, or lies beyond what the model reads; ``document`` is not a str.
            UnsupportedModel: the model's pooling reads a token by its position, or its file pools by itself.
        """
        parts.check_pooling(self.pooling, len(self.output.shape or ()) == 3, self._word_weights is not None)
        finish, prefix = self._finisher("", normalize, self._width(truncate_dim)), self._prompt(prompt, prompt_name)
        document = checked(document, "document")
        chosen = parts.checked_spans(spans, len(document), len(prefix))
        encodings = self._encode([prefix + document], offsets=True)
        ranges = parts.token_ranges(encodings[0], chosen, self.max_length)
        feeds, mask = self._feeds(encodings)
        (output,) = in_float32(self.session.run([self.output.name], feeds))
        return self._stored(np.concatenate([finish(output[:, at], mask[:, at]) for at in ranges]))

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
        finish = self._finisher(prefix)
        return _in_order(
            (batch.positions, self._stored(np.asarray(self._finished(finish, output, batch.mask))))
            for batch, (output,) in self._run(self._batches(prefix + text for text in stream_of(texts)))
        )

    async def aembed(
        self,
        texts: Iterable[str] | Encoded,
        *,
        prompt_name: str | None = None,
        prompt: str | None = None,
        normalize: bool | None = None,
        truncate_dim: int | None = None,
    ) -> npt.NDArray[Any]:
        """Embed texts without blocking the event loop; concurrent callers share the machine and, where that pays,
        batches. Arguments, result and errors are those of :meth:`embed`, and ``QueueFull``."""
        items, prefix = self._prompted(texts, prompt, prompt_name)
        finish, width = self._finisher(prefix, normalize, truncate_dim), self._width(truncate_dim)
        return self._stored(await self._arun(items, finish, (width,)))

    def _width(self, truncate_dim: int | None) -> int:
        if truncate_dim is None:
            return self.dimension
        if not is_number(truncate_dim, Integral) or not 1 <= truncate_dim <= self.dimension:
            raise number_error(truncate_dim)(
                f"truncate_dim must be from 1 to {self.dimension}, the embedder's dimension, got {truncate_dim!r}"
            )
        if self._kind in vector_types.BITS and truncate_dim % 8:
            raise InvalidArgument(f"truncate_dim must be a multiple of 8 for vectors of bits, got {truncate_dim}")
        return int(truncate_dim)

    def _choose(self, outputs: dict[str, int]) -> str:
        if not outputs and self._requested is None:  # a checkpoint
            return POOLED if self.settings.static else TOKENS[0]
        return output_by_token(outputs, self._requested, pools=bool(self._modes))

    def _finisher(self, prefix: str, normalize: bool | None = None, truncate_dim: int | None = None) -> Any:
        """From a batch's output and mask to vectors."""
        normalize = check_flag(normalize, "normalize", optional=True)
        skipped = self.prompt_tokens(prefix) if prefix and not self._include_prompt else 0
        return partial(self._finish, skipped=skipped, normalize=normalize, dimensions=truncate_dim)

    def _finish(
        self, output: Array, mask: npt.NDArray[Any], skipped: int, normalize: bool | None, dimensions: int | None
    ) -> Array:
        vectors = output
        if output.ndim == 3:
            if skipped:
                mask = mask.copy()
                mask[:, :skipped] = 0
            vectors = pool(applied(self._token_steps, vectors), mask, self.pooling)
        steps = (step for step in self._steps if normalize is not False or step != NORMALIZE)
        vectors = applied(steps, vectors)[:, : dimensions or self._truncate_dim]
        return normalized(vectors) if (self._normalize_last if normalize is None else normalize) else vectors

    def _feeds(self, encodings: Sequence[Tokens]) -> tuple[dict[str, npt.NDArray[Any]], npt.NDArray[Any]]:
        feeds, mask = super()._feeds(encodings)
        if self._word_weights is None:
            return feeds, mask
        weights = mask.astype(np.float32)
        for row, encoding in zip(weights, encodings, strict=True):
            row[: len(encoding.ids)] = self._word_weights.of(encoding.ids)
        return feeds, weights

    def _dimension(self, truncate_dim: int | None) -> int:
        shape = self.output.shape or ()
        if len(shape) == 3 and not self.pooling:
            raise InvalidModel(
                f"Cannot tell how to pool the tokens of this model: {self.folder} has no modules.json and no "
                "1_Pooling/config.json. Pass pooling='mean' or another; to a command, --pooling mean"
            )
        if len(shape) not in (2, 3) or not isinstance(shape[-1], int):
            raise InvalidModel(f"The output {self.output.name!r} must have a fixed width, got shape {shape}")
        width = shape[-1]
        if len(shape) == 3:
            width = width_after(self._token_steps, width, self.folder) * len(self.pooling)
        width = width_after(self._steps, width, self.folder)
        if truncate_dim is not None and truncate_dim > width:
            raise InvalidArgument(f"truncate_dim must be at most {width}, the model's dimension, got {truncate_dim}")
        return min(self._truncate_dim or width, width)


def _in_order(batches: Iterable[tuple[list[int], Any]]) -> Iterator[Any]:
    """The rows of batches, by their positions."""
    waiting: dict[int, Any] = {}
    following = 0
    for positions, rows in batches:
        waiting.update(zip(positions, rows, strict=True))
        while following in waiting:
            yield waiting.pop(following)
            following += 1
