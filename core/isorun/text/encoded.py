"""Texts that are tokens already."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from isorun.errors import InvalidFeeds
from isorun.models.tokenizer import Tokens
from isorun.system.arguments import check_items


class TokenIds(NamedTuple):
    """Token ids of a caller."""

    ids: Sequence[int]
    type_ids: Sequence[int]
    overflowing: Sequence[Any] = ()


@dataclass(frozen=True)
class Encoded:
    """Texts as tokens: what :meth:`isorun.Embedder.encode` and :meth:`isorun.Embedder.encode_ids` return, and the
    methods of texts accept in place of texts, which are then tokenized once.

    Attributes:
        items: the tokens of each text.
        prompt: the text before each of them.
    """

    items: Sequence[Tokens]
    prompt: str = ""

    def __len__(self) -> int:
        return len(self.items)

    @property
    def lengths(self) -> list[int]:
        """The number of tokens of each, special tokens included, as the model reads them."""
        return [len(item.ids) for item in self.items]

    @property
    def truncated(self) -> list[int]:
        """The positions of texts that were cut to ``max_length``."""
        return [position for position, item in enumerate(self.items) if item.overflowing]


def encoded_ids(ids: Iterable[Sequence[int]], max_length: int | None) -> Encoded:
    """Token ids that a caller passes.

    Args:
        ids: those of each text.
        max_length: the maximum number of each.

    Raises:
        InvalidFeeds: an item is not a sequence of whole numbers, is empty, or has too many.
    """
    check_items(ids, "ids", "the token ids of texts")
    return Encoded([_token_ids(item, position, max_length) for position, item in enumerate(ids)])


def _token_ids(ids: Any, position: int, max_length: int | None) -> TokenIds:
    if isinstance(ids, np.ndarray):
        ids = ids.tolist()
    # bool is an int, and a list of a million items is checked without a Python loop
    if not isinstance(ids, list | tuple) or not set(map(type, ids)) <= {int, np.int32, np.int64}:
        raise InvalidFeeds(f"Text {position} must be a list of token ids, got {str(ids)[:80]}")
    if not ids:
        raise InvalidFeeds(f"Text {position} has no token ids. Pass at least one")
    if max_length is not None and len(ids) > max_length:
        raise InvalidFeeds(f"Text {position} must have at most {max_length} token ids (max_length), got {len(ids)}")
    if min(ids) < 0 or max(ids) >= 2**31:
        raise InvalidFeeds(
            f"Text {position} must have token ids of the model's vocabulary, got {min(ids)} to {max(ids)}"
        )
    return TokenIds(ids, [0] * len(ids))
