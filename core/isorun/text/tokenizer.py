"""The tokens of texts, for callers that feed a session themselves."""

from __future__ import annotations

import operator
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from isorun.errors import InvalidFeeds, InvalidType
from isorun.models import text_reader
from isorun.models.sentence_settings import SentenceSettings
from isorun.models.tokenizer import Text, feeds_of
from isorun.session.session import Session
from isorun.system.arguments import check_count, check_flag
from isorun.system.cache import Cache
from isorun.text.inputs import text_or_pair, texts_or_pairs_of
from isorun.text.model import warn_of_truncation
from isorun.text.model_files import find_model

if TYPE_CHECKING:
    from tokenizers import Encoding


class Token(NamedTuple):
    """A token of a text.

    Attributes:
        text: as the vocabulary has it.
        id: its number in the vocabulary.
        start, end: the positions in its text of its first character, and after its last one; both 0 for a special
            token.
        word: the number of its word in its text; ``None`` for a special token.
        part: 0 in the first text of a pair, or the only one, and 1 in the second; ``None`` for a special token.
    """

    text: str
    id: int
    start: int
    end: int
    word: int | None
    part: int | None

    @property
    def is_special(self) -> bool:
        """Whether the tokenizer added it, such as ``[CLS]``."""
        return self.part is None


@dataclass(frozen=True)
class Tokenized(Sequence[Sequence[Token]]):
    """Texts as tokens: a sequence with the tokens of each text.

    Attributes:
        encodings: of the package ``tokenizers``, whose ``tokens`` are what was matched: an added token may take the
            spaces beside it. ``overflowing`` has at least the next tokens of a text that was cut,
            but not always all of them: a long text is tokenized only as far as needed.
        arrays: ``input_ids``, ``attention_mask`` (1 at real tokens) and ``token_type_ids``, each int64 of shape
            (texts, longest text).
        text_of: from the number of a token to its text in the vocabulary; ``None`` for one that is not there.
    """

    encodings: Sequence[Encoding]
    arrays: Mapping[str, npt.NDArray[np.int64]]
    text_of: Callable[[int], str | None]

    def __len__(self) -> int:
        return len(self.encodings)

    def __getitem__(self, position: Any) -> Any:
        if isinstance(position, slice):
            return list(map(self._tokens, self.encodings[position]))
        return self._tokens(self.encodings[position])

    def __iter__(self) -> Iterator[Sequence[Token]]:
        return map(self._tokens, self.encodings)

    @property
    def truncated(self) -> list[int]:
        """The positions of texts that were cut to the maximum number of tokens."""
        return [position for position, encoding in enumerate(self.encodings) if encoding.overflowing]

    def feeds(self, session: Session) -> dict[str, npt.NDArray[Any]]:
        """What ``Session.run`` reads: the inputs of its model, in their types, padded on the right.

        Raises:
            InvalidFeeds: the model has a required input that is not derived from text.
            InvalidType: it is not a session.
        """
        if not isinstance(session, Session):
            raise InvalidType(f"session must be an isorun.Session, got {type(session).__name__}")
        return feeds_of(self.arrays, session.model_info)

    def _tokens(self, encoding: Encoding) -> list[Token]:
        texts = (self.text_of(number) or text for number, text in zip(encoding.ids, encoding.tokens, strict=True))
        rows = zip(texts, encoding.ids, encoding.offsets, encoding.word_ids, encoding.sequence_ids, strict=True)
        return [Token(text, number, *place, word, part) for text, number, place, word, part in rows]


class Tokenizer:
    """Converts texts to tokens as the model's authors do, with the positions of their characters and words.

    Threads may share it.

    Args:
        model: the folder of a checkpoint, an ONNX file with its tokenizer beside it, the name of a checkpoint, or an
            open session, whose model's limit then holds too.
        max_length: the maximum number of tokens of a text, special tokens included; longer texts are cut. ``None`` for
            what the checkpoint states.
        special_tokens: whether texts get special tokens, such as ``[CLS]``; a model of static vectors reads none.
        cache_dir: the folder of downloads; ``None`` for isorun's.

    Attributes:
        max_length: the maximum number of tokens of a text; ``None`` for no limit.
        special_tokens: the special tokens by name, such as ``mask_token``.

    Raises:
        TokenizerError: there is none, or only one that has to be converted first; the message says how.
        InvalidModel: there is no such model, or the tokenizer is damaged.
        UnsupportedModel: a setting of the tokenizer is not supported.
        InvalidArgument: ``max_length`` is no whole number, or below 1.
    """

    def __init__(
        self,
        model: str | os.PathLike[str] | Session,
        *,
        max_length: int | None = None,
        special_tokens: bool = True,
        cache_dir: str | os.PathLike[str] | None = None,
    ) -> None:
        max_length = check_count(max_length, "max_length", optional=True)
        special_tokens = check_flag(special_tokens, "special_tokens")
        path = model.path if isinstance(model, Session) else find_model(model, Cache(cache_dir))
        settings = _settings(path, model)
        self._reader = text_reader.tokenizer_of(path, settings, special_tokens=special_tokens)
        limits = model.model_info.limits.values() if isinstance(model, Session) else ()
        stated = settings if max_length is None else replace(settings, max_tokens=max_length)
        self.max_length: int | None = text_reader.limit_of(stated, self._reader, *limits)
        self.special_tokens: Mapping[str, str] = self._reader.special_tokens

    def encode(self, texts: Sequence[Text]) -> Tokenized:
        """The tokens of texts.

        Args:
            texts: one or more texts, or pairs such as ``(question, context)``.

        Raises:
            InvalidFeeds: there is no text, or an item is neither a text nor a pair.

        Warns:
            TruncationWarning: texts were cut to ``max_length``.
        """
        encodings = self._reader.encodings(list(texts_or_pairs_of(texts)), self.max_length, offsets=True)
        warn_of_truncation(encodings, self.max_length)
        return Tokenized(encodings, self._reader.batch(encodings), self._reader.library.id_to_token)

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """The text of token ids.

        Raises:
            InvalidFeeds: an item is not a token id.
        """
        try:
            return self._reader.decode(list(map(operator.index, ids)), skip_special_tokens=skip_special_tokens)
        except (TypeError, OverflowError) as error:
            raise InvalidFeeds(f"ids must be a list of token ids, got {ids!s:.80}") from error

    def count(self, text: Text) -> int:
        """The number of tokens of a text or a pair, special tokens included, before any cut."""
        return len(self._reader.encodings([text_or_pair(text, "text")], None)[0].ids)


def _settings(path: Path, model: object) -> SentenceSettings:
    """What a checkpoint, or the file that isorun built from it, says of its texts."""
    metadata: Mapping[str, str] = {}
    if isinstance(model, Session):
        metadata = model.get_modelmeta().custom_metadata_map
    elif path.is_file():
        import onnx

        properties = onnx.load(path, load_external_data=False).metadata_props
        metadata = {entry.key: entry.value for entry in properties}
    return text_reader.settings_of(path, metadata)
