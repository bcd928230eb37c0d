"""Text in, vectors out: a checkpoint's own tokenizer, and what a sentence model does with the hidden states.

``tokenizers`` is imported when a tokenizer is opened, not before.
"""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import numpy.typing as npt

from isorun.errors import InvalidFeeds, InvalidModel, IsorunError
from isorun.types import ModelInfo

if TYPE_CHECKING:
    import tokenizers

Text = str | tuple[str, str]
"""One text, or a pair such as a question and its context."""

FILE = "tokenizer.json"
_LONE_SURROGATE = re.compile("[\ud800-\udfff]")


class TruncationWarning(UserWarning):
    """A text was longer than the model takes, and its end was cut off."""


class Tokenizer:
    """A ``tokenizer.json``, as the feeds of a BERT encoder.

    Args:
        path: the file.
        limit: the most tokens that the model takes, special tokens included (the rows of its position
            table); ``None`` for no limit. What the file itself says of truncation and padding is ignored:
            it is a setting of whoever saved it, not a property of the model.

    Raises:
        InvalidModel: the file is missing or is no tokenizer.
        IsorunError: the package ``tokenizers`` is not installed.
    """

    def __init__(self, path: str | os.PathLike[str], limit: int | None = None) -> None:
        self.path = Path(path)
        self.limit = limit
        self._tokenizer = _open(self.path)
        padding = self._tokenizer.padding
        self._pad = padding["pad_id"] if padding else self._tokenizer.token_to_id("[PAD]") or 0
        self._tokenizer.no_padding()  # all-MiniLM-L6-v2's file would pad to 128, as if that were text

    @classmethod
    def beside(cls, model: str | os.PathLike[str], limit: int | None = None) -> Self:
        """The tokenizer that belongs to a model file or to a checkpoint's folder.

        For ``m.onnx`` it is ``m.tokenizer.json``, else a ``tokenizer.json`` in the same folder or in the one
        above it (where Optimum leaves it); for a folder it is the ``tokenizer.json`` in it or above it.

        Raises:
            InvalidModel: there is none; the message says where it was looked for.
        """
        places = list(places_of(Path(model)))
        for place in places:
            if place.is_file():
                return cls(place, limit)
        looked = ", ".join(str(place) for place in places)
        raise InvalidModel(
            f"{model} has no tokenizer beside it: there is no {looked}. "
            f"Copy the {FILE} of the checkpoint there, or give token ids instead of text."
        )

    def encode(self, texts: Sequence[Text], length: int | None = None) -> dict[str, npt.NDArray[np.int64]]:
        """Token ids of a batch, padded on the right.

        Args:
            texts: one or more texts or pairs.
            length: the number of columns; ``None`` for that of the longest text.

        Returns:
            ``input_ids``, ``attention_mask`` (1 at real tokens) and ``token_type_ids`` (1 in the second text
            of a pair), each int64 of shape (batch, sequence).

        Raises:
            InvalidFeeds: no text, something that is no text, or a length above the model's limit.

        Warns:
            TruncationWarning: texts that do not fit, with how many tokens each had.
        """
        if isinstance(texts, str) or not texts:
            raise InvalidFeeds(f"Texts are a list of at least one text; {texts!r} came")
        for position, text in enumerate(texts):
            parts = text if isinstance(text, tuple) else (text,)
            pair = isinstance(text, tuple) and len(text) == 2
            if not (pair or isinstance(text, str)) or not all(isinstance(part, str) for part in parts):
                raise InvalidFeeds(f"Text {position} is {text!r}; a text is a str, a pair is a tuple of two")
            if any(_LONE_SURROGATE.search(part) for part in parts):
                raise InvalidFeeds(
                    f"Text {position} is {text!r}: it holds half a character, as text does that was no UTF-8"
                )
        if length is not None and (length < 1 or (self.limit is not None and length > self.limit)):
            raise InvalidFeeds(f"A length of {length} was asked for; the model takes 1 to {self.limit or 'any'} tokens")

        most = length or self.limit
        if most is None:
            self._tokenizer.no_truncation()
        else:
            special = self._tokenizer.num_special_tokens_to_add(any(isinstance(text, tuple) for text in texts))
            if most <= special:
                raise InvalidFeeds(f"A length of {most} leaves no room for text: {special} tokens mark its ends")
            self._tokenizer.enable_truncation(most)
        encodings = self._tokenizer.encode_batch(list(texts))
        if most is not None:
            self._warn_of_truncation(texts, most, [bool(encoding.overflowing) for encoding in encodings])

        columns = length or max(len(encoding.ids) for encoding in encodings)
        shape = (len(encodings), columns)
        ids = np.full(shape, self._pad, dtype=np.int64)
        mask = np.zeros(shape, dtype=np.int64)
        types = np.zeros(shape, dtype=np.int64)
        for row, encoding in enumerate(encodings):
            real = len(encoding.ids)
            ids[row, :real] = encoding.ids
            mask[row, :real] = 1
            types[row, :real] = encoding.type_ids
        return {"input_ids": ids, "attention_mask": mask, "token_type_ids": types}

    def _warn_of_truncation(self, texts: Sequence[Text], most: int, cut: Sequence[bool]) -> None:
        if not any(cut):
            return
        self._tokenizer.no_truncation()
        long = [position for position, is_cut in enumerate(cut) if is_cut]
        lengths = [len(encoding.ids) for encoding in self._tokenizer.encode_batch([texts[each] for each in long])]
        which = ", ".join(f"text {position} ({had})" for position, had in zip(long, lengths, strict=True))
        warnings.warn(
            f"Cut to {most} tokens, which is as long as they may be here: {which}", TruncationWarning, stacklevel=3
        )


def feeds_of(encoded: Mapping[str, npt.NDArray[np.int64]], info: ModelInfo) -> dict[str, npt.NDArray[Any]]:
    """Encoded texts as a model's feeds: the mask under the name that the model has for it, all in its dtypes.

    Args:
        encoded: what :meth:`Tokenizer.encode` returns.
        info: the model.

    Raises:
        InvalidFeeds: the model needs an input that no text becomes.
    """
    named = {**encoded, **({info.mask: encoded["attention_mask"]} if info.mask else {})}
    if missing := [spec.name for spec in info.required if spec.name not in named]:
        raise InvalidFeeds(f"The model needs {', '.join(missing)}, which a text does not give. Pass feeds instead")
    return {spec.name: named[spec.name].astype(spec.dtype or np.int64) for spec in info.inputs if spec.name in named}


def mean_pool(hidden: npt.NDArray[np.floating], mask: npt.NDArray[np.integer]) -> npt.NDArray[np.floating]:
    """The mean of the hidden states over real tokens, as sentence-transformers takes it.

    Args:
        hidden: (batch, sequence, width).
        mask: (batch, sequence), 1 at real tokens.

    Returns:
        (batch, width); zeros for a row without a real token.
    """
    weights = mask[..., None].astype(hidden.dtype)
    # Padding may hold anything, not-a-number included: take it out rather than multiply it by zero.
    kept = np.where(weights > 0, hidden, 0)
    total: npt.NDArray[np.floating] = kept.sum(axis=1) / np.maximum(weights.sum(axis=1), 1)
    return total


def cosine_matrix(vectors: npt.NDArray[np.floating]) -> npt.NDArray[np.floating]:
    """The cosine of every vector with every other.

    Args:
        vectors: (count, width).

    Returns:
        (count, count), in float64; 0 where one of the two is the zero vector.
    """
    wide = vectors.astype(np.float64)
    lengths = np.linalg.norm(wide, axis=1, keepdims=True)
    units = np.divide(wide, lengths, out=np.zeros_like(wide), where=lengths > 0)
    product: npt.NDArray[np.floating] = units @ units.T
    return product


def places_of(model: Path) -> Iterator[Path]:
    folder = model
    if not model.is_dir():
        folder = model.parent
        yield model.with_name(f"{model.stem}.{FILE}")
    folder = folder.absolute()
    yield folder / FILE
    yield folder.parent / FILE


def _open(path: Path) -> tokenizers.Tokenizer:
    try:
        import tokenizers
    except ModuleNotFoundError as error:
        raise IsorunError(
            "Reading text needs the package 'tokenizers'. Install it: pip install 'isorun[graph]'"
        ) from error
    if not path.is_file():
        raise InvalidModel(f"There is no tokenizer {path}")
    try:
        return tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises no narrower type
        raise InvalidModel(f"{path} is not a tokenizer that the package 'tokenizers' reads: {error}") from error
