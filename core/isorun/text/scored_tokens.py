"""Queries and documents as a model with late interaction reads them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from isorun.errors import InvalidModel
from isorun.models.late_interaction import DOCUMENT, QUERY, Expansion, LateInteraction
from isorun.models.tokenizer import Tokenizer, Tokens


class ScoredTokens(NamedTuple):
    """The tokens of a text.

    Attributes:
        ids, type_ids, overflowing: as the package ``tokenizers`` has them.
        attended: how many of them the model attends to: the first ones.
        scored: which of them have a vector in the result, bool.
    """

    ids: Sequence[int]
    type_ids: Sequence[int]
    overflowing: Sequence[Any]
    attended: int
    scored: npt.NDArray[np.bool_]


class Reader:
    """What makes queries and documents of tokens.

    Args:
        settings: of the model.
        tokenizer: the model's.

    Raises:
        InvalidModel: a query is filled up with a token that the tokenizer does not have.
        UnsupportedModel: a query is filled up before its text, not to a fixed length or with tokens that are not
            attended to.
    """

    def __init__(self, settings: LateInteraction, tokenizer: Tokenizer) -> None:
        self.expansion: Expansion | None = settings.expansion
        _mark(tokenizer, settings.markers)
        self._skipped_tasks = settings.skiplist_tasks
        self._skipped = ids_of(tokenizer, settings.skiplist_words)
        self._filler = None if self.expansion is None else _filler(tokenizer, self.expansion)
        self._fills_before = tokenizer.settings.padding_side == "left"
        alone = self.expansion is None or (self.expansion.attend and self.expansion.strategy == "fixed")
        if self._fills_before and not alone:  # the tokens of a query would depend on other queries
            reason = "filling queries up before their text is supported with strategy 'fixed' and attend only"
            raise tokenizer.settings.unsupported("padding_side", reason)

    def read(self, tokens: Tokens, task: str | None) -> ScoredTokens:
        """A text.

        Args:
            tokens: its tokens.
            task: what it is; ``None`` counts as a document.
        """
        ids, types = list(tokens.ids), list(tokens.type_ids)
        real = attended = len(ids)
        if task == QUERY and self.expansion is not None:
            more = max(0, self.expansion.length - real)
            at = 0 if self._fills_before else real
            ids[at:at] = [self._filler] * more  # type: ignore[list-item]  # there is one with an expansion
            types[at:at] = [0] * more
            attended += more * self.expansion.attend
        scored = np.ones(len(ids), np.bool_)
        if (task or DOCUMENT) in self._skipped_tasks:
            scored = ~np.isin(ids, self._skipped)
        return ScoredTokens(ids, types, tokens.overflowing, attended, scored)


def _mark(tokenizer: Tokenizer, markers: Collection[str]) -> None:
    """Make one token of each marker that the tokenizer has and would split, as sentence-transformers does."""
    from tokenizers import AddedToken

    library = tokenizer.library
    for marker in markers:
        for text in dict.fromkeys((marker, *marker.split()[:1])):
            if library.token_to_id(text) is None:
                continue
            if library.encode(text, add_special_tokens=False).tokens != [text]:
                library.add_special_tokens([AddedToken(text, normalized=False, special=True)])
            break


def ids_of(tokenizer: Tokenizer, words: Iterable[str]) -> npt.NDArray[np.int64]:
    """The ids of words that are tokens."""
    ids = (tokenizer.library.token_to_id(word) for word in words)
    return np.array([number for number in ids if number is not None], np.int64)


def _filler(tokenizer: Tokenizer, expansion: Expansion) -> int:
    special = tokenizer.special_tokens
    token = expansion.token or special.get("mask_token") or special.get("eos_token")
    number = None if token is None else tokenizer.library.token_to_id(token)
    if number is None:
        raise InvalidModel(f"The model fills queries up with {token!r}, which its tokenizer does not have")
    return int(number)
