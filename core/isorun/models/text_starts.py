"""Starts of long texts whose tokens are the first tokens of the whole text.

A text of megabytes is tokenized only as far as the model reads it. Where a text may be cut follows from the tokenizer:

- Its normalizer and its splits have to be of kinds that look no further than the characters around a position. A
  tokenizer with any other part gets whole texts.
- The cut is between a word and white space, a Chinese character or punctuation, and no added token has such a place in
  it. The tokenizer's own split of the characters around the cut has to be there too, so the model tokenizes both sides
  independently. Where nothing splits texts at white space, no token of the vocabulary may contain the place.

Only the last token before a cut may depend on what follows (unknown characters are joined), so a start has at least one
token more than is read.
"""

from __future__ import annotations

import itertools
import json
import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from isorun.system.interruption import interrupts

if TYPE_CHECKING:
    import tokenizers

_logger = logging.getLogger(__name__)

CHARACTERS = 8
"""The characters of a start for each token that is read; if they are too few tokens, the start grows."""

_GROWTH = 4  # of a start with too few tokens
_WINDOWS = 4  # of a text with a token for each character, above which a pair of such texts is shortened
_MORE = 64  # tokens: the last ones of a start may be other ones in the whole text
_CANDIDATES = 16  # places tested around one position
_AROUND = 64  # characters on each side of a place that its test reads
_SPACES = " \t\n\r\u3000"
_MARKS = ",.;:!?"
_CHINESE = "\u4e00-\u9fff"  # BERT's tokenizers split there
_PREPENDED = "\u0d4e\U000111c2\U000111c3\U0001193f\U00011941\U00011a3a\U00011a84-\U00011a89\U00011d46\U00011f02"
_ENDS = rf"(?<=[^\W{_PREPENDED}]|[!-/:-@\[-`{{-~])"
"""The last character before a cut: a letter, a digit or ASCII punctuation that is whole without the next character."""
_META = "▁"

_NORMALIZERS = {
    *("BertNormalizer", "NFC", "NFD", "NFKC", "NFKD", "Lowercase", "StripAccents"),
    *("Nmt", "Precompiled", "Strip", "Prepend", "Replace", "Sequence"),
}
_SPLITS = {
    *("BertPreTokenizer", "Whitespace", "WhitespaceSplit", "Punctuation", "Digits", "Metaspace", "ByteLevel", "Split"),
    *("CharDelimiterSplit", "Sequence"),
}
_SPACE = r"((\\[snrt]| |\[(\\[snrt]| )+\])(\+|\{[1-9]\d*,?\d*\})?)+"
_OF_SPACES = re.compile(rf"{_SPACE}(\|{_SPACE})*")
"""Regular expressions that match white space alone."""
_WORDS = frozenset(
    {
        r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
        r"'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+",
        *(
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|" + digits + r"| ?[^\s\p{L}\p{N}]+[\r\n]*|"
            r"\s*[\r\n]+|\s+(?!\S)|\s+"
            for digits in (r"\p{N}", r"\p{N}{1,3}")
        ),
    }
)
"""Regular expressions of published tokenizers that look ahead only within white space (GPT-2, CLIP, Qwen, Llama 3)."""


class Starts:
    """The starts of texts for one tokenizer.

    Args:
        library: the tokenizer, which is not changed afterwards.
    """

    def __init__(self, library: tokenizers.Tokenizer) -> None:
        self._library = library

    def of(self, text: str, size: int) -> str:
        """A start of a text of at least ``size`` characters, or the text, if there is no place to cut it."""
        if len(text) <= size or self._places is None:
            return text
        for pattern in self._places:
            for match in itertools.islice(pattern.finditer(text, size), _CANDIDATES):
                if self._splits_at(text, match.start()):
                    return text[: match.start()]
        return text

    @cached_property
    def _places(self) -> Sequence[re.Pattern[str]] | None:
        """Where a text may be cut; ``None`` if nowhere."""
        parts = [_parts(step) for step in (self._library.normalizer, self._library.pre_tokenizer)]
        if None in parts or getattr(self._library.model, "dropout", None):
            return None
        normalizers, splits = parts[0] or [], parts[1] or []
        added = self._library.get_added_tokens_decoder().values()
        literals = [token.content for token in added]
        if self._library.normalizer is not None:
            literals += [self._library.normalizer.normalize_str(literal) for literal in literals]
        for part in (*normalizers, *splits):
            pattern = part.get("pattern") or {}
            if "String" in pattern:
                literals.append(pattern["String"])
            elif not _is_local(part["type"], pattern.get("Regex")):
                return None
        if (
            not {part["type"] for part in normalizers} <= _NORMALIZERS
            or not {part["type"] for part in splits} <= _SPLITS
        ):
            return None
        inner = [pair for literal in literals for pair in itertools.pairwise(literal)]
        if any(_is_space(second) and not _is_space(first) for first, second in inner):
            return None
        marks = "".join(mark for mark in _MARKS if all(mark != second for _, second in inner))
        if not any(_is_chinese(second) or (_is_space(first) and _is_space(second)) for first, second in inner):
            marks += "" if any(token.single_word for token in added) else _CHINESE
        return [re.compile(f"{_ENDS}[{places}]") for places in (_SPACES, marks) if places]

    def _splits_at(self, text: str, place: int) -> bool:
        """Whether the tokenizer separates what is before a place of a text from what follows."""
        begin, end = max(0, place - _AROUND), place + _AROUND
        before, whole = (self._normalized(text[begin:until]) for until in (place, end))
        following = whole[len(before) : len(before) + 1]
        if not before or not whole.startswith(before) or not (_is_space(following) or following == text[place]):
            return False
        if _is_space(before[-1]) and not _is_chinese(text[place]):
            return False
        first, pieces = self._pieces(before), self._pieces(whole)
        if pieces[: len(first)] == first:
            return True
        *others, (piece, _) = first
        if pieces[: len(others)] != others:
            return False
        joined = pieces[len(others)][0]
        following = joined[len(piece) : len(piece) + 1]
        return joined.startswith(piece) and piece[-1] != following == _META and self._words_are_whole

    def _normalized(self, text: str) -> str:
        normalizer = self._library.normalizer
        return text if normalizer is None else str(normalizer.normalize_str(text))

    def _pieces(self, text: str) -> list[Any]:
        split = self._library.pre_tokenizer
        return [(text, (0, len(text)))] if split is None else list(split.pre_tokenize_str(text))

    @cached_property
    def _words_are_whole(self) -> bool:
        """Whether no token of the vocabulary has a word's end and the next word's beginning, so that a text without
        splits is nevertheless tokenized word by word."""
        from tokenizers import models

        model = self._library.model
        if isinstance(model, models.BPE):
            if model.ignore_merges or model.end_of_word_suffix or model.continuing_subword_prefix:
                return False
        elif not isinstance(model, models.Unigram):
            return False
        across = re.compile(f"[^{_META}]{_META}")
        return not any(map(across.search, self._library.get_vocab(with_added_tokens=False)))


class Start:
    """The start of one text, which can grow.

    Args:
        text: the text.
        tokens: how many are read.
        starts: of the tokenizer.

    Attributes:
        text: the start.
        whole: whether it is the whole text.
    """

    def __init__(self, text: str, tokens: int, starts: Starts) -> None:
        self._whole_text, self._size, self._starts = text, CHARACTERS * tokens, starts
        self.text = starts.of(text, self._size)

    @property
    def whole(self) -> bool:
        return len(self.text) == len(self._whole_text)

    def grow(self) -> None:
        """Lengthen the start."""
        self._size = _GROWTH * max(self._size, len(self.text))
        self.text = self._starts.of(self._whole_text, self._size)


def pair_starts(
    pairs: Sequence[tuple[str, str]], tokens: int, starts: Starts, count: Callable[[list[str]], list[int]]
) -> list[tuple[str, str]]:
    """Pairs with both texts cut so that truncation from the right, longest text first, keeps the same tokens.

    Args:
        pairs: the pairs.
        tokens: how many are read of a pair, without special tokens.
        starts: of the tokenizer.
        count: the numbers of tokens of texts, without special tokens.
    """
    cut = [(Start(first, tokens, starts), Start(second, tokens, starts)) for first, second in pairs]
    pending, counts = cut, dict[str, int]()
    while pending:
        unknown = list(dict.fromkeys(start.text for pair in pending for start in pair if start.text not in counts))
        counts.update(zip(unknown, count(unknown), strict=True))
        growing = [_insufficient(pair, tokens, counts) for pair in pending]
        for start in itertools.chain.from_iterable(growing):
            start.grow()
        pending = [pair for pair, insufficient in zip(pending, growing, strict=True) if insufficient]
    return [(first.text, second.text) for first, second in cut]


def of_few_windows(library: tokenizers.Tokenizer, text: str | tuple[str, str], count: int) -> str | tuple[str, str]:
    """A pair of two long texts, shortened to a little more than so many tokens each; another text or pair as it is.

    Of such a pair, the library makes a window for each part of one with each part of the other, which takes gigabytes.
    The longer one stays the longer one, which may get a token more.

    Args:
        library: does not truncate.
        text: the pair.
        count: the maximum number of tokens.
    """
    if isinstance(text, str) or min(map(len, text)) <= _WINDOWS * count:
        return text
    whole = [library.encode(part, add_special_tokens=False) for part in text]
    lengths = [len(encoding.ids) for encoding in whole]
    if min(lengths) <= count + _MORE + 1:
        return text
    ends = [
        encoding.offsets[count + _MORE + (own > min(lengths))][1] for encoding, own in zip(whole, lengths, strict=True)
    ]
    first, second = (part[:end] for part, end in zip(text, ends, strict=True))
    starts = [library.encode(part, add_special_tokens=False).ids for part in (first, second)]
    same = all(ids[:count] == encoding.ids[:count] for ids, encoding in zip(starts, whole, strict=True))
    shorter = min(map(len, starts)) > count and np.sign(lengths[0] - lengths[1]) == np.sign(
        len(starts[0]) - len(starts[1])
    )
    return (first, second) if same and shorter else text


def _insufficient(pair: tuple[Start, Start], tokens: int, counts: Mapping[str, int]) -> list[Start]:
    """The starts that have to grow."""
    short = [start for start in pair if not start.whole and counts[start.text] <= tokens]
    smaller, larger = sorted(pair, key=lambda start: counts[start.text])
    if short or tokens % 2 == 0 or counts[smaller.text] <= tokens:
        return short
    # Both texts get half of an odd number of tokens: the longer one gets one more, so it must be known which one it is.
    if not smaller.whole:
        return [smaller]
    return [] if larger.whole or counts[larger.text] > counts[smaller.text] else [larger]


def _is_space(character: str) -> bool:
    return character.isspace() or character == _META


def _is_chinese(character: str) -> bool:
    return "\u4e00" <= character <= "\u9fff"


def _parts(component: Any) -> list[Mapping[str, Any]] | None:
    """The parts of a normalizer or of splits; ``None`` if they cannot be read."""
    if component is None:
        return []
    try:
        state = json.loads(component.__getstate__())
    except Exception as error:  # one written in Python; the library raises no narrower type
        if interrupts(error):
            raise
        _logger.debug("texts are tokenized to their ends: %s", error)
        return None
    return list(_flat(state))


def _flat(state: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    yield state
    for part in (*state.get("normalizers", ()), *state.get("pretokenizers", ())):
        yield from _flat(part)


def _is_local(kind: str, regex: str | None) -> bool:
    """Whether a part with a regular expression finds the same in a text before a cut, whatever follows it."""
    return regex is None or bool(_OF_SPACES.fullmatch(regex)) or (kind == "Split" and regex in _WORDS)
