"""Tokenizers of checkpoints.

``tokenizers`` is imported when a tokenizer is opened, not before.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, Self

import numpy as np
import numpy.typing as npt

from isorun.errors import InvalidFeeds, InvalidModel, TokenizerError
from isorun.models import tokenizer_config, tokenizer_file, vocabulary_files
from isorun.models.text_starts import CHARACTERS, Start, Starts, of_few_windows, pair_starts
from isorun.models.tokenizer_config import TokenizerSettings
from isorun.system.arguments import is_unicode
from isorun.system.caller_warnings import warn
from isorun.system.packages import require
from isorun.types import ModelInfo

if TYPE_CHECKING:
    import tokenizers

Text = str | tuple[str, str]
"""One text, or a pair such as a question and its context."""

FILE = "tokenizer.json"
_NAMES = (FILE, vocabulary_files.WORD_PIECES, vocabulary_files.BYTE_PAIRS)
_POSITIONS = "position_ids"
_SPACED = (" .", " ?", " !", " ,", " ' ", " n't", " 'm", " 's", " 've", " 're")  # in the order of transformers
_MAX_SETTINGS = 16  # truncating tokenizers kept; each is small, since they share the vocabulary


class TruncationWarning(UserWarning):
    """A text exceeded the model's maximum length and was truncated."""


class Tokens(Protocol):
    """The tokens of a text, as the package ``tokenizers`` has them."""

    @property
    def ids(self) -> Sequence[int]:
        """The token ids, special tokens included."""

    @property
    def type_ids(self) -> Sequence[int]:
        """The type of each: 1 in the second text of a pair."""

    @property
    def overflowing(self) -> Sequence[Any]:
        """What was cut off, in parts; of a long text not all of it."""


class Tokenizer:
    """Converts text to the feeds of an encoder with a ``tokenizer.json``, and the files beside it, as transformers 5.

    Threads may share it.

    Args:
        path: the file.
        limit: the model's maximum number of tokens, special tokens included (the rows of its position table);
            ``None`` for no limit. Of the file's truncation and padding settings, the sides and the token count; the
            lengths are not properties of the model.
        lower_case: convert texts to lower case first.
        special_tokens: whether texts get special tokens, such as ``[CLS]``.
        plain: use the file as it is, its truncation included, and none beside it, as static embeddings do.

    Raises:
        InvalidModel: the file is missing or is not a tokenizer.
        UnsupportedModel: ``tokenizer_config.json`` has a value that isorun does not support.
        IsorunError: the package ``tokenizers`` is not installed.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        limit: int | None = None,
        *,
        lower_case: bool = False,
        special_tokens: bool = True,
        plain: bool = False,
    ) -> None:
        self.path: Path = Path(path)
        self.limit = limit
        require("Reading text", "tokenizers")
        if not self.path.is_file():
            raise InvalidModel(f"There is no tokenizer {self.path}")
        from isorun.models import tokenizer_classes

        prefix = self.path.name
        for name in _NAMES:
            prefix = prefix.removesuffix(name)
        self.settings: TokenizerSettings = (
            TokenizerSettings(self.path) if plain else tokenizer_config.read(self.path.parent, prefix)
        )
        """What ``tokenizer_config.json`` beside it states: ``m.tokenizer_config.json`` for ``m.tokenizer.json``."""
        built = tokenizer_classes.build(self.path, self.settings, plain=plain)
        self.settings = built.settings
        self.adds_special_tokens: bool = special_tokens
        """Whether texts get special tokens. It may be changed before the first text."""
        self.library, self._special_ids, self._pad = built.library, built.special_ids, built.pad_id
        """The tokenizer itself, of the package ``tokenizers``, without truncation and padding."""
        self.special_tokens: Mapping[str, str] = built.special_tokens
        """The special tokens by name, such as ``mask_token``."""
        self._lock = threading.Lock()
        self._truncating: OrderedDict[tuple[Any, ...], tokenizers.Tokenizer] = OrderedDict()
        if lower_case:
            from tokenizers import normalizers

            steps = [normalizers.Lowercase(), *filter(None, [self.library.normalizer])]
            self.library.normalizer = normalizers.Sequence(steps)

    @classmethod
    def beside(cls, model: str | os.PathLike[str], **options: bool) -> Self:
        """The tokenizer that belongs to a model file or to a checkpoint's folder, with further arguments of the class.

        For ``m.onnx``: ``m.tokenizer.json``, else ``tokenizer.json`` in the same folder or its parent (where Optimum
        writes it). For a folder: ``tokenizer.json`` in it or its parent. Else ``vocab.txt``, or ``vocab.json`` and
        ``merges.txt``, in these folders.

        Raises:
            TokenizerError: there is none; the message lists the paths, or says how to convert what is there.
        """
        candidates = list(places_of(Path(model)))
        for candidate in candidates:
            if candidate.is_file():
                return cls(candidate, **options)
        for folder in dict.fromkeys(candidate.parent for candidate in candidates):
            vocabulary_files.reject_sentencepiece(folder)
        tested = ", ".join(str(candidate) for candidate in candidates if candidate.name.endswith(FILE))
        raise TokenizerError(
            f"{model} has no tokenizer beside it (looked for {tested}). "
            f"Copy the checkpoint's {FILE} next to the model, or pass token ids instead of text"
        )

    def encode(self, texts: Sequence[Text], length: int | None = None) -> dict[str, npt.NDArray[np.int64]]:
        """Token ids of a batch, padded on the right.

        Args:
            texts: one or more texts or pairs.
            length: the number of columns, which cuts texts too; ``None`` for that of the longest text.

        Returns:
            ``input_ids``, ``attention_mask`` (1 at real tokens) and ``token_type_ids`` (1 in the second text
            of a pair; 0 where the tokenizer's class makes none), each int64 of shape (batch, sequence).

        Raises:
            InvalidFeeds: there is no text, an item is not a text, or the length is below 1.

        Warns:
            TruncationWarning: texts were truncated; the message has their numbers of tokens, unless they are far above
                the maximum.
        """
        if length is not None and length < 1:
            raise InvalidFeeds(f"length must be at least 1, got {length}")
        max_tokens = min(filter(None, (length, self.limit)), default=None)
        encodings = self.encodings(texts, max_tokens)
        if max_tokens is not None:
            self._warn_of_truncation(texts, max_tokens, [bool(encoding.overflowing) for encoding in encodings])
        return self.batch(encodings, length)

    def encodings(
        self, texts: Sequence[Text], max_tokens: int | None, *, offsets: bool = False, overlap: int | None = None
    ) -> list[tokenizers.Encoding]:
        """Each text's ``ids`` and ``type_ids``, without padding, cut to a number of tokens without a warning.

        Args:
            texts: texts or pairs.
            max_tokens: the number; ``None`` for all tokens.
            offsets: whether the encodings have the position of each token in its text, which takes longer.
            overlap: how many tokens each window of a long text shares with the one before, where ``overflowing`` has
                the windows; of a pair, only the second text is cut. ``None`` for no windows.

        Raises:
            InvalidFeeds: there is no text, an item is not a text, or only special tokens would fit.
        """
        if isinstance(texts, str) or not texts:
            raise InvalidFeeds(f"Texts must be a list of at least one text, got {texts!r}")
        for position, text in enumerate(texts):
            parts = text if isinstance(text, tuple) else (text,)
            pair = isinstance(text, tuple) and len(text) == 2
            if not (pair or isinstance(text, str)) or not all(isinstance(part, str) for part in parts):
                raise InvalidFeeds(f"Text {position} must be a str or a tuple of two, got {text!r}")
            if not all(map(is_unicode, parts)):
                raise InvalidFeeds(
                    f"Text {position} contains a lone surrogate (was it decoded from invalid UTF-8?): {text!r}"
                )
        if max_tokens is not None:
            special = self.added_tokens(pair=any(isinstance(text, tuple) for text in texts))
            if max_tokens <= special:
                raise InvalidFeeds(f"max_length must exceed the {special} special tokens, got {max_tokens}")
        library = self._truncated(max_tokens, overlap, second=overlap is not None and isinstance(texts[0], tuple))
        slowly = offsets or library.post_processor is None  # else the second text of a pair would be of type 0
        encode_batch = library.encode_batch if slowly else library.encode_batch_fast

        def encode(batch: Sequence[Text]) -> list[tokenizers.Encoding]:
            encoded: list[tokenizers.Encoding] = encode_batch(list(batch), add_special_tokens=self.adds_special_tokens)
            return encoded

        with tokenizer_file.guarded(self.path):
            if max_tokens is None or overlap is not None or self.settings.truncation_side != "right":
                return encode(texts)
            return self._encoded_starts(texts, max_tokens, encode)

    def _encoded_starts(
        self, texts: Sequence[Text], max_tokens: int, encode: Callable[[Sequence[Text]], list[tokenizers.Encoding]]
    ) -> list[tokenizers.Encoding]:
        """Encode texts, the long ones only as far as they are read."""
        batch = [of_few_windows(self._truncated(None, None, second=False), text, max_tokens) for text in texts]
        long = [position for position, text in enumerate(batch) if self._is_long(text, max_tokens)]
        if not long:
            return encode(batch)
        growing: dict[int, Start] = {}
        pairs: dict[int, tuple[str, str]] = {}
        for position in long:
            text = batch[position]
            if isinstance(text, tuple):
                pairs[position] = text
            else:
                growing[position] = Start(text, max_tokens - self.added_tokens(), self._starts)
                batch[position] = growing[position].text
        if pairs:
            room = max_tokens - self.added_tokens(pair=True)
            cut = pair_starts([*pairs.values()], room, self._starts, self._counts)
            for position, pair in zip(pairs, cut, strict=True):
                batch[position] = pair
        encoded = encode(batch)
        while growing := {
            position: start
            for position, start in growing.items()
            if not start.whole and not encoded[position].overflowing
        }:
            for start in growing.values():
                start.grow()
            for position, encoding in zip(growing, encode([start.text for start in growing.values()]), strict=True):
                encoded[position] = encoding
        return encoded

    def _is_long(self, text: Text, max_tokens: int) -> bool:
        """Whether a text is so long that tokenizing its start first saves time."""
        if isinstance(text, tuple):  # a start is tokenized twice
            return max(map(len, text)) > 4 * CHARACTERS * max_tokens
        return len(text) > 1.5 * CHARACTERS * max_tokens

    def _counts(self, texts: list[str]) -> list[int]:
        library = self._truncated(None, None, second=False)
        return [len(encoding.ids) for encoding in library.encode_batch_fast(texts, add_special_tokens=False)]

    @cached_property
    def _starts(self) -> Starts:
        return Starts(self._truncated(None, None, second=False))

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool) -> str:
        """The text of token ids."""
        text = str(self.library.decode(ids, skip_special_tokens))
        if self.settings.cleans_up(type(self.library.model).__name__):
            for spaced in _SPACED:
                text = text.replace(spaced, spaced.strip())
        return text

    def added_tokens(self, *, pair: bool = False) -> int:
        """The number of special tokens that a text, or a pair, gets."""
        return self.library.num_special_tokens_to_add(pair) if self.adds_special_tokens else 0

    def join(self, tokens: Sequence[str]) -> str:
        """The text of tokens, as the tokenizer decodes them."""
        decoder = self.library.decoder
        return " ".join(tokens) if decoder is None else str(decoder.decode(list(tokens)))

    def leading_tokens(self, prompt: str, max_tokens: int | None) -> int:
        """The number of a prompt's tokens at the start of a text, special tokens before it included.

        As in sentence-transformers, the last token does not count if it is a special one, and one only.
        """
        (encoding,) = self.encodings([prompt], max_tokens)
        if not encoding.ids:
            return 0
        ends = encoding.special_tokens_mask[-1] if self.settings.kind is None else encoding.ids[-1] in self._special_ids
        return len(encoding.ids) - bool(ends)

    def batch(self, encodings: Sequence[Tokens], length: int | None = None) -> dict[str, npt.NDArray[np.int64]]:
        """Encodings as arrays, as :meth:`encode` returns them."""
        columns = length or max(1, *(len(encoding.ids) for encoding in encodings))
        shape = (len(encodings), columns)
        ids = np.full(shape, self._pad, dtype=np.int64)
        mask = np.zeros(shape, dtype=np.int64)
        types = np.zeros(shape, dtype=np.int64)
        typed = "token_type_ids" in self.settings.inputs
        for row, encoding in enumerate(encodings):
            real = len(encoding.ids)
            ids[row, :real] = encoding.ids
            mask[row, :real] = 1
            if typed:
                types[row, :real] = encoding.type_ids
        return {"input_ids": ids, "attention_mask": mask, "token_type_ids": types}

    def _truncated(self, max_tokens: int | None, overlap: int | None, *, second: bool) -> tokenizers.Tokenizer:
        """A tokenizer that truncates to a number of tokens and is never changed, so that threads can share it."""
        key = (max_tokens, overlap, second)
        with self._lock:
            if key not in self._truncating:
                with tokenizer_file.guarded(self.path):
                    library = _copy(self.library)
                    if max_tokens is not None:
                        library.enable_truncation(
                            max_tokens,
                            stride=overlap or 0,
                            strategy="only_second" if second else "longest_first",
                            direction=self.settings.truncation_side,
                        )
                self._truncating[key] = library
                if len(self._truncating) > _MAX_SETTINGS:
                    self._truncating.popitem(last=False)
            self._truncating.move_to_end(key)
            return self._truncating[key]

    def _warn_of_truncation(self, texts: Sequence[Text], max_tokens: int, cut: Sequence[bool]) -> None:
        if not any(cut):
            return
        truncated = [position for position, is_cut in enumerate(cut) if is_cut]
        counted = [position for position in truncated if not self._is_long(texts[position], max_tokens)]
        encodings = self.encodings([texts[position] for position in counted], None) if counted else []
        counts = {
            position: f" ({len(encoding.ids)} tokens)" for position, encoding in zip(counted, encodings, strict=True)
        }
        which = ", ".join(f"text {position}{counts.get(position, '')}" for position in truncated)
        warn(f"Truncated to the maximum of {max_tokens} tokens: {which}", TruncationWarning)


def feeds_of(encoded: Mapping[str, npt.NDArray[np.int64]], info: ModelInfo) -> dict[str, npt.NDArray[Any]]:
    """Convert encoded texts to a model's feeds, with its name of the mask and its dtypes.

    Args:
        encoded: the result of :meth:`Tokenizer.encode`.
        info: the model.

    Positions count from 0 where the model computes angles from them. Where it looks them up in a table, which row is
    the first token's depends on the model, so they are not derived.

    Raises:
        InvalidFeeds: the model has a required input that is not derived from text.
    """
    named = {**encoded, **({info.mask: info.as_mask(encoded["attention_mask"])} if info.mask else {})}
    if any(spec.name == _POSITIONS and spec.bounds is None for spec in info.required):
        ids = encoded["input_ids"]
        named[_POSITIONS] = np.broadcast_to(np.arange(ids.shape[1]), ids.shape)
    if missing := [spec.name for spec in info.required if spec.name not in named]:
        raise InvalidFeeds(f"The model needs {', '.join(missing)}, which text alone cannot provide. Pass feeds instead")
    return {spec.name: named[spec.name].astype(spec.dtype or np.int64) for spec in info.inputs if spec.name in named}


def places_of(model: Path) -> Iterator[Path]:
    """Where to look for a model's tokenizer, or the vocabulary in its place: its own, its folder's, those above."""
    folder = (model if model.is_dir() else model.parent).absolute()
    prefixes = [] if model.is_dir() else [folder / f"{model.stem}."]
    for prefix in (*prefixes, folder, folder.parent):
        for name in _NAMES:
            place = prefix.with_name(prefix.name + name) if prefix in prefixes else prefix / name
            if name != vocabulary_files.BYTE_PAIRS or vocabulary_files.merges_of(place).is_file():
                yield place


def _copy(library: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
    """A tokenizer that shares the model, which holds nearly all of the memory, but not the settings."""
    from tokenizers import Tokenizer as Library

    copy = Library(library.model)
    for name in ("normalizer", "pre_tokenizer", "post_processor", "decoder"):
        if (component := getattr(library, name)) is not None:
            setattr(copy, name, component)
    copy.encode_special_tokens = library.encode_special_tokens
    added = library.get_added_tokens_decoder()
    copy.add_tokens([added[number] for number in sorted(added)])
    if {number: repr(token) for number, token in copy.get_added_tokens_decoder().items()} != {
        number: repr(token) for number, token in added.items()
    }:  # ids with gaps
        copy = Library.from_str(library.to_str())
        copy.encode_special_tokens = library.encode_special_tokens
    return copy
