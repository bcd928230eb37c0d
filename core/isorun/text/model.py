"""A tokenizer and a session: texts in, outputs of the model out, in batches that hold little padding."""

from __future__ import annotations

import asyncio
import itertools
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, Self, TypeVar

import numpy as np
import numpy.typing as npt

from isorun.errors import InvalidArgument, InvalidFeeds
from isorun.models import checkpoint, modules, sentence_settings, sentences
from isorun.models.lowering import info_of
from isorun.models.modules import Modules
from isorun.models.sentence_settings import SentenceSettings
from isorun.models.text_reader import limit_of, settings_folder, settings_of, tokenizer_of
from isorun.models.tokenizer import Text, Tokenizer, Tokens, TruncationWarning, feeds_of
from isorun.models.weights import digest
from isorun.session.session import Session
from isorun.system.arguments import check_count, check_flag
from isorun.system.cache import Cache
from isorun.system.caller_warnings import warn
from isorun.system.cleanup import closed_on_error
from isorun.system.packages import require
from isorun.text.encoded import Encoded, encoded_ids
from isorun.text.inputs import checked, text_or_pair, texts_of, texts_or_pairs_of
from isorun.text.model_files import find_model
from isorun.text.steps import in_float32, output_by_token

if TYPE_CHECKING:
    from tokenizers import Encoding

    from isorun.types import TensorSpec

Array = npt.NDArray[np.float32]
Mask = npt.NDArray[np.int64]
Result = TypeVar("Result")

_WINDOW = 4096  # texts that are tokenized and sorted together
_SMALLEST = 512  # tokens; a batch is not split for the sake of concurrency below that
_BAR_AFTER = 2.0  # seconds
_ON_LOOP = 10_000  # characters and texts; more are tokenized off the event loop


class Batch(NamedTuple):
    """Texts that run together: their positions among all texts, and their feeds."""

    positions: list[int]
    feeds: dict[str, npt.NDArray[Any]]
    mask: Mask


class TextModel:
    """A model that reads text.

    Args:
        model: the folder of a checkpoint, an ONNX file with its tokenizer beside it, or the name of a checkpoint.
        max_length: the maximum number of tokens of a text; ``None`` for what the checkpoint says.
        batch_tokens: the maximum size of a batch, rows times its longest row; ``None`` for 4096, or for one text at a
            time where texts of a batch would change one another's results.
        session_options: arguments of :class:`isorun.Session`.
    """

    task: str | None = None
    """What texts are, which selects the route of a model with a router; ``None`` for the default one."""
    reads_pairs = False
    """Whether an item may be a pair of texts."""
    reads_one_token = False
    """Whether a text's result is that of a token at one position, such as the first, without which it has none."""
    default_batch_tokens = 4096
    """The maximum size of a batch, where the caller names none."""

    def __init__(
        self,
        model: str | os.PathLike[str],
        *,
        max_length: int | None = None,
        batch_tokens: int | None = None,
        **session_options: Any,
    ) -> None:
        batch_tokens = check_count(batch_tokens, "batch_tokens", optional=True)
        max_length = check_count(max_length, "max_length", optional=True)
        self._downloads = Cache(session_options.get("cache_dir"))  # kept: with False it ends with this object
        path, self._is_foreign = find_model(model, self._downloads), False
        self.from_checkpoint = path.is_dir()
        self.folder: Path = path if self.from_checkpoint else settings_folder(path)
        self.modules: Modules = modules.read(self.folder) if self.from_checkpoint else Modules({None: ()})
        route = self._route(self.modules)
        if self.from_checkpoint:
            outputs = {}
            settings = sentences.read(self.folder, route)
        else:
            cache = Cache(session_options.get("cache_dir"), verify=session_options.get("verify_cache"))
            info = info_of(path, cache)
            outputs = {spec.name: len(spec.shape or ()) for spec in info.outputs}
            metadata = info.metadata.custom_metadata_map
            settings = settings_of(path, metadata)
            self._is_foreign = not metadata.get(sentence_settings.METADATA)
        self.tokenizer: Tokenizer = tokenizer_of(path, settings, route)
        self.settings: SentenceSettings = self._completed(settings)
        built, self._digest, self._requested = path, None, session_options.get("outputs")
        chosen_outputs = self._choose(outputs)
        names = [chosen_outputs] if isinstance(chosen_outputs, str) else chosen_outputs
        if self.from_checkpoint:
            self._digest = digest(sentences.transformer_folder(path, route), self._downloads)
            score = self.settings.logit_score
            built = checkpoint.build_cached(path, self._downloads, whole=False, route=route, logit_score=score)
        self._batch_tokens = batch_tokens
        self.session: Session = Session(built, **{"outputs": names, **self._session_defaults(), **session_options})
        self._by_row = bool(session_options.get("deterministic"))
        with closed_on_error(self):
            self.output: TensorSpec = self.session.get_outputs()[0]
            shapes = [spec.shape for spec in self.session.get_inputs() if spec.shape and len(spec.shape) == 2]
            self._columns = next((shape[1] for shape in shapes if isinstance(shape[1], int)), None)
            limits = list(filter(None, [*self.session.model_info.limits.values(), self._columns]))
            self._positions = min(limits, default=None)
            self._opened_length = limit_of(settings, self.tokenizer, *limits)
            self.limit_length(max_length)
            self._opened_length = self.tokenizer.limit = self.max_length
            self._prepare()

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            f"{type(self).__name__} cannot be pickled or copied. Open one in each process; threads can share one."
        )

    def limit_length(self, max_length: int | None) -> None:
        """Change the maximum number of tokens of a text; ``None`` for the one that the model was opened with.

        Raises:
            InvalidArgument: it is no whole number above that of special tokens, or exceeds the model's limit.
        """
        self.max_length = self._opened_length if max_length is None else self._checked_length(max_length, "max_length")

    def _checked_length(self, value: Any, name: str) -> int:
        """A maximum number of tokens, which leaves room beside special tokens and is within the model's limit."""
        length: int = check_count(value, name)
        if self._positions is not None and length > self._positions:
            raise InvalidArgument(f"{name} must be at most {self._positions}, the model's limit, got {length}")
        if length <= (special := self.tokenizer.added_tokens()):
            raise InvalidArgument(f"{name} must exceed the {special} special tokens of a text, got {length}")
        return length

    def count_tokens(self, text: Text) -> int:
        """The number of tokens of a text, special tokens included, before any truncation.

        Raises:
            InvalidFeeds: ``text`` is not a str, or a pair where the model reads pairs.
        """
        item = text_or_pair(text, "text") if self.reads_pairs else checked(text, "text")
        return len(self._encodings([item], None)[0].ids)

    def encode(self, texts: Iterable[Text]) -> Encoded:
        """The tokens of texts, cut to ``max_length``; the methods of texts accept them in place of the texts.

        Raises:
            InvalidFeeds, InvalidArgument: as the methods of texts.
        """
        return self._encoded(self._items(texts))

    def encode_ids(self, ids: Iterable[Sequence[int]]) -> Encoded:
        """As :meth:`encode`, from the token ids of each text, special tokens included: the model reads them as they
        are, all of type 0.

        Raises:
            InvalidFeeds: an item is not a list of token ids, is empty, or has more than ``max_length``.
        """
        return encoded_ids(ids, self.max_length)

    def tokens(self, texts: Iterable[Text]) -> dict[str, npt.NDArray[np.int64]]:
        """Token ids, mask and types of a batch of texts, (batch, sequence), as :meth:`Tokenizer.encode` names them."""
        return self.tokenizer.batch(self._encode(self._items(texts)), self._columns)

    def feeds(self, encoded: dict[str, npt.NDArray[np.int64]]) -> dict[str, npt.NDArray[Any]]:
        """The model's feeds for :meth:`tokens`."""
        return feeds_of(encoded, self.session.model_info)

    def prompt_tokens(self, prompt: str) -> int:
        """The number of a prompt's tokens at the start of a text, special tokens before it included."""
        return self.tokenizer.leading_tokens(prompt, self.max_length)

    def warmup(self, texts: Iterable[Text] | None = None) -> None:
        """Compile and run everything that texts may need, before the first request: :meth:`isorun.Session.warmup`.

        Args:
            texts: texts like those that will come; ``None`` for a range of lengths.
        """
        self.session.warmup(None if texts is None else [batch.feeds for batch in self._batches(self._items(texts))])

    def close(self) -> None:
        """Release the model. A second call does nothing."""
        self.session.close()
        self._downloads.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run(self, batches: Iterable[Batch]) -> Iterator[tuple[Batch, list[Array]]]:
        """Batches and their outputs, in the order in which they end; read as far ahead as results are taken."""
        pending: deque[Batch] = deque()

        def feeds() -> Iterator[dict[str, npt.NDArray[Any]]]:
            for batch in batches:
                pending.append(batch)
                yield batch.feeds

        for outputs in self.session.run_batches(None, feeds()):
            yield pending.popleft(), in_float32(outputs)

    def _collect(
        self,
        texts: Sequence[Text] | Encoded,
        finish: Callable[[Array, Mask], Array],
        width: tuple[int, ...],
        progress: bool | None,
    ) -> Array:
        """All results, (number of texts, *width)."""
        results = np.empty((len(texts), *width), np.float32)
        with progress_bar(len(texts), progress) as bar:
            for batch, (output,) in self._run(self._batches(texts)):
                results[batch.positions] = np.asarray(self._finished(finish, output, batch.mask))
                bar.update(len(batch.positions))
        return results

    async def _arun(
        self, texts: Sequence[Text] | Encoded, finish: Callable[[Array, Mask], Array], width: tuple[int, ...]
    ) -> Array:
        """As :meth:`_collect`, sharing batches with other callers."""
        rows: list[Array] = await self._arows(texts, finish)
        return np.array(rows, np.float32).reshape(len(texts), *width)

    def _rows(
        self,
        texts: Sequence[Text] | Encoded,
        finish: Callable[[Array, Mask], Iterable[Result]],
        progress: bool | None = None,
    ) -> list[Result]:
        """What each text results in, where that is no row of an array.

        Args:
            texts: texts, pairs, or their tokens.
            finish: from a batch's output and mask to a result for each row.
            progress: as for :meth:`isorun.Embedder.embed`.
        """
        results: dict[int, Result] = {}
        with progress_bar(len(texts), progress) as bar:
            for batch, (output,) in self._run(self._batches(texts)):
                results |= zip(batch.positions, self._finished(finish, output, batch.mask), strict=True)
                bar.update(len(batch.positions))
        return [results[position] for position in range(len(texts))]

    async def _arows(
        self, texts: Sequence[Text] | Encoded, finish: Callable[[Array, Mask], Iterable[Result]]
    ) -> list[Result]:
        """As :meth:`_rows`, sharing batches with other callers."""
        if not texts:
            return []
        self.session.check_room(len(texts))
        encodings: Sequence[Tokens]
        if isinstance(texts, Encoded):
            encodings = texts.items
        elif sum(1 + len(part) for text in texts for part in ((text,) if isinstance(text, str) else text)) <= _ON_LOOP:
            encodings = self._encode(texts)
        else:
            encodings = await asyncio.to_thread(self._encode, texts)
        outputs = await self._aoutputs(encodings)
        return [row for mask, (output,) in outputs for row in self._finished(finish, output, mask)]

    def _finished(
        self, finish: Callable[[Array, Mask], Iterable[Result]], output: Array, mask: Mask
    ) -> Iterable[Result]:
        """The results of a batch; with ``deterministic=True`` of each row alone, without its padding, since sums and
        products of NumPy depend on how many numbers there are."""
        if not self._by_row:
            return finish(output, mask)
        by_token = output.ndim == 3 and output.shape[1] == mask.shape[1]
        results: list[Result] = []
        for row, kept in enumerate(mask > 0):
            end = int(np.flatnonzero(kept).max(initial=0)) + 1
            part = output[row : row + 1, :end] if by_token else output[row : row + 1]
            results.extend(finish(part, mask[row : row + 1, :end]))
        return results

    async def _aoutputs(self, encodings: Sequence[Tokens]) -> list[tuple[npt.NDArray[np.int64], list[Array]]]:
        """The mask and the outputs of each text, one row each, sharing batches with other callers."""
        requests = [self._feeds([encoding]) for encoding in encodings]
        outputs = await self.session.arun_many(None, [feeds for feeds, _ in requests])
        return [(mask, in_float32(own)) for (_, mask), own in zip(requests, outputs, strict=True)]

    def _batches(self, texts: Iterable[Text] | Encoded) -> Iterator[Batch]:
        """The texts in batches of similar length, the longest of each window first."""
        if isinstance(texts, Encoded):
            yield from self._batches_of(texts.items)
            return
        start = 0
        for window in windows(texts):
            yield from self._batches_of(self._encode(window), start)
            start += len(window)

    def _batches_of(self, encodings: Sequence[Tokens], start: int = 0) -> Iterator[Batch]:
        """Batches of similar length, the longest first; ``start`` is the position of the first text."""
        tokens = self._batch_tokens
        if tokens is None:
            tokens = 1 if self.session.runs_alone() else self.default_batch_tokens
        lengths = np.array([len(encoding.ids) for encoding in encodings])
        share = -(-int(lengths.sum()) // self.session.concurrency)
        budget = min(tokens, max(share, _SMALLEST))
        order = np.argsort(-lengths, kind="stable")
        at = 0
        while at < len(order):
            rows = order[at : at + max(1, budget // max(1, int(lengths[order[at]])))]
            at += len(rows)
            yield Batch([start + int(row) for row in rows], *self._feeds([encodings[row] for row in rows]))

    def _items(self, texts: Iterable[Text]) -> Sequence[Text]:
        return texts_or_pairs_of(texts) if self.reads_pairs else texts_of(texts)

    def _items_or_tokens(self, texts: Iterable[Text] | Encoded) -> Sequence[Text] | Encoded:
        return texts if isinstance(texts, Encoded) else self._items(texts)

    def _encoded(self, texts: Sequence[Text], prompt: str = "") -> Encoded:
        """Texts, which begin with the prompt, as tokens; without a warning of truncation."""
        return Encoded(self._with_tokens(texts, self._encodings(texts, self.max_length)) if texts else [], prompt)

    def _encode(self, texts: Sequence[Text], *, offsets: bool = False, overlap: int | None = None) -> list[Encoding]:
        """The tokens of texts; arguments are those of :meth:`isorun.models.tokenizer.Tokenizer.encodings`."""
        encodings = self._with_tokens(texts, self._encodings(texts, self.max_length, offsets=offsets, overlap=overlap))
        if overlap is None:
            warn_of_truncation(encodings, self.max_length)
        return encodings

    def _with_tokens(self, texts: Sequence[Text], encodings: list[Encoding]) -> list[Encoding]:
        empty = (text for text, encoding in zip(texts, encodings, strict=True) if not encoding.ids)
        if self.reads_one_token and (text := next(empty, None)) is not None:
            raise InvalidFeeds(f"The text {text!r:.80} has no tokens, and the model reads one of them. Omit it")
        return encodings

    def _encodings(self, texts: Sequence[Text], max_length: int | None, **settings: Any) -> list[Encoding]:
        return self.tokenizer.encodings(texts, max_length, **settings)

    def _feeds(self, encodings: Sequence[Tokens]) -> tuple[dict[str, npt.NDArray[Any]], npt.NDArray[np.int64]]:
        encoded = self.tokenizer.batch(encodings, self._columns)
        return self.feeds(encoded), encoded["attention_mask"]

    def _choose(self, outputs: dict[str, int]) -> str | list[str]:
        """The output or outputs to compute.

        Args:
            outputs: the names and ranks of an ONNX file's outputs; empty for a checkpoint.
        """
        return output_by_token(outputs, self._requested, pools=True)

    def _prepare(self) -> None:
        """Set what a class needs beside the session. The model is closed if this fails."""

    def _completed(self, settings: SentenceSettings) -> SentenceSettings:
        """The settings, with what the model's files do not state."""
        return settings

    def _session_defaults(self) -> dict[str, Any]:
        """Arguments of the session that the caller may replace."""
        return {}

    def _route(self, modules: Modules) -> str | None:
        """The route whose modules the model is made of, if it has a router."""
        return modules.route(self.task)


def warn_of_truncation(encodings: Iterable[Tokens], limit: int | None) -> None:
    """Warn if any text had more tokens than the limit."""
    if limit is not None and any(encoding.overflowing for encoding in encodings):
        warn(f"Texts of more than {limit} tokens are truncated to {limit} (see max_length)", TruncationWarning)


def windows(texts: Iterable[Text]) -> Iterator[Sequence[Text]]:
    """Texts that are tokenized and sorted together."""
    remaining = iter(texts)
    while window := list(itertools.islice(remaining, _WINDOW)):
        yield window


def progress_bar(total: int, progress: bool | None) -> Any:
    """A progress bar on standard error: ``None`` shows it on a terminal once the work takes long."""
    progress = check_flag(progress, "progress", optional=True)
    require("Embedding text", "tqdm")
    from tqdm import tqdm

    shown = {"disable": None, "delay": _BAR_AFTER} if progress is None else {"disable": not progress}
    return tqdm(total=total, unit=" texts", leave=False, **shown)
