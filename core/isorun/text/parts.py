"""Parts of a document by their characters: which tokens each one has."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from isorun.errors import InvalidArgument, InvalidFeeds, UnsupportedModel
from isorun.system.arguments import check_items

if TYPE_CHECKING:
    from tokenizers import Encoding

POOLINGS = ("mean", "max", "mean_sqrt_len_tokens")
"""The poolings that make a vector of any tokens. Others read a token by its position in the whole text."""


def check_pooling(modes: Sequence[str], by_token: bool, weighted: bool) -> None:
    """Refuse a model whose vectors are not made of the states of any tokens.

    Args:
        modes: its poolings.
        by_token: whether it returns states of tokens.
        weighted: whether words have weights.

    Raises:
        UnsupportedModel: it is one.
    """
    others = [mode for mode in modes if mode not in POOLINGS]
    if others or not by_token or weighted:
        pooling = others[0] if others else "by weights of words" if weighted else "in its graph"
        raise UnsupportedModel(
            f"Parts of a document need a pooling of token states ({', '.join(POOLINGS)}), and this model pools "
            f"{pooling}. Embed the parts as texts"
        )


def checked_spans(spans: Iterable[Sequence[int]], length: int, offset: int) -> list[tuple[int, int]]:
    """Spans of characters as pairs of integers.

    Args:
        spans: pairs of the position of a part's first character and of the one after its last.
        length: of the document.
        offset: added to each position: the length of what comes before the document.

    Raises:
        InvalidArgument: a span is not a pair of whole numbers, is empty, or is not within the document.
    """
    check_items(spans, "spans", "pairs of positions")
    checked = []
    for number, span in enumerate(spans):
        pair = tuple(span) if isinstance(span, tuple | list | np.ndarray) and getattr(span, "ndim", True) else ()
        if len(pair) != 2 or not all(isinstance(at, int | np.integer) and not isinstance(at, bool) for at in pair):
            raise InvalidArgument(f"Span {number} must be a pair of positions (start, end), got {span!r}")
        start, end = (int(at) for at in pair)
        if not 0 <= start < end <= length:
            raise InvalidArgument(
                f"Span {number} must begin before it ends, within the {length} characters of the document, got {span!r}"
            )
        checked.append((start + offset, end + offset))
    if not checked:
        raise InvalidArgument("spans must have at least one (start, end)")
    return checked


def token_ranges(encoding: Encoding, spans: Sequence[tuple[int, int]], limit: int | None) -> list[slice]:
    """The tokens of each span: from the first to the last that share a character with it, special tokens left out.

    Args:
        encoding: of the document, with offsets.
        spans: in characters of the text that was encoded.
        limit: the maximum number of tokens, for the message.

    Raises:
        InvalidFeeds: a span has no token, or has some that were cut.
    """
    offsets: Any = np.array(encoding.offsets).reshape(-1, 2)
    real = np.array([part is not None for part in encoding.sequence_ids]) & (offsets[:, 0] < offsets[:, 1])
    read = int(offsets[real, 1].max(initial=0))
    first = int(offsets[real, 0].min(initial=read))
    cut = np.array([place for piece in encoding.overflowing for place in piece.offsets], np.int64).reshape(-1, 2)
    cut = cut[(cut[:, 0] < cut[:, 1]) & (cut[:, 1] <= first)]  # before what is read, if texts are cut on the left
    ranges = []
    for number, (start, end) in enumerate(spans):
        if encoding.overflowing and end > read:
            raise InvalidFeeds(
                f"Span {number} ends at character {end} of the text with its prompt, but the {limit} tokens that the "
                f"model reads end at character {read}. Pass a shorter document, or a larger max_length"
            )
        if ((cut[:, 0] < end) & (cut[:, 1] > start)).any():
            raise InvalidFeeds(
                f"Span {number} starts at character {start} of the text with its prompt, but the {limit} tokens that "
                f"the model reads start at character {first}. Pass a shorter document, or a larger max_length"
            )
        (inside,) = np.nonzero(real & (offsets[:, 0] < end) & (offsets[:, 1] > start))
        if not inside.size:
            raise InvalidFeeds(f"Span {number} has no token: is it white space?")
        ranges.append(slice(int(inside[0]), int(inside[-1]) + 1))
    return ranges
