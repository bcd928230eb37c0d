"""From the scores of tokens to entities: the aggregation strategies of transformers' token-classification pipeline."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np

from isorun.text.model import Array

STRATEGIES = ("none", "simple", "first", "average", "max")
"""How the tokens of a word or of an entity are joined; see :meth:`isorun.TokenClassifier.classify`."""


class Entity(NamedTuple):
    """A part of a text with a class.

    Attributes:
        label: the class; without the prefix ``B-`` or ``I-`` where tokens are joined.
        score: the mean of the probabilities of its tokens or words.
        word: its tokens, as the tokenizer decodes them. The text itself is ``text[start:end]``.
        start, end: the positions in the text of its first character, and after its last one.
        position: that of its token, special tokens included; ``None`` where tokens are joined.
    """

    label: str
    score: float
    word: str
    start: int
    end: int
    position: int | None = None


class Token(NamedTuple):
    """A token of a text.

    Attributes:
        word: as the vocabulary has it.
        scores: the probabilities of the classes.
        start, end: its characters in the text.
        position: that among all tokens, special tokens included.
        is_subword: whether it continues the word of the token before.
    """

    word: str
    scores: Array
    start: int
    end: int
    position: int
    is_subword: bool


def entities(
    tokens: Sequence[Token], labels: Sequence[str], strategy: str, join: Callable[[list[str]], str]
) -> list[Entity]:
    """The entities of one part of a text, of every label.

    Args:
        tokens: in the order of the text.
        labels: the names of the classes.
        strategy: one of :data:`STRATEGIES`.
        join: from tokens to text.
    """
    if strategy in ("none", "simple"):
        single = [_of_token(token, labels) for token in tokens]
        return single if strategy == "none" else _grouped(single, join)
    words: list[list[Token]] = []
    for token in tokens:
        if words and token.is_subword:
            words[-1].append(token)
        else:
            words.append([token])
    return _grouped([_of_word(word, labels, strategy, join) for word in words], join)


def without_overlaps(parts: Iterable[Entity]) -> list[Entity]:
    """Entities of the windows of a text, once each: of overlapping ones the longest, then the one of higher score."""
    kept: list[Entity] = []
    for entity in sorted(parts, key=lambda entity: entity.start):
        if not kept or not kept[-1].start <= entity.start < kept[-1].end:
            kept.append(entity)
            continue
        size, last = entity.end - entity.start, kept[-1].end - kept[-1].start
        if size > last or (size == last and entity.score > kept[-1].score):
            kept[-1] = entity
    return kept


def _of_token(token: Token, labels: Sequence[str]) -> Entity:
    best = int(token.scores.argmax())
    return Entity(labels[best], float(token.scores[best]), token.word, token.start, token.end, token.position)


def _of_word(tokens: Sequence[Token], labels: Sequence[str], strategy: str, join: Callable[[list[str]], str]) -> Entity:
    if strategy == "first":
        scores = tokens[0].scores
    elif strategy == "max":
        scores = max((token.scores for token in tokens), key=lambda scores: float(scores.max()))
    else:
        scores = np.mean([token.scores for token in tokens], axis=0)
    best = int(scores.argmax())
    word = join([token.word for token in tokens])
    return Entity(labels[best], float(scores[best]), word, tokens[0].start, tokens[-1].end)


def _grouped(parts: Sequence[Entity], join: Callable[[list[str]], str]) -> list[Entity]:
    """Adjacent tokens or words of the same class as one entity; ``B-`` begins another."""
    groups: list[list[Entity]] = []
    for part in parts:
        tag = _tag(part.label)
        if groups and tag == _tag(groups[-1][-1].label) and not part.label.startswith("B-"):
            groups[-1].append(part)
        else:
            groups.append([part])
    return [
        Entity(
            class_of(group[0].label),
            float(np.mean([part.score for part in group])),
            join([part.word for part in group]),
            group[0].start,
            group[-1].end,
        )
        for group in groups
    ]


def class_of(label: str) -> str:
    """The class of joined tokens whose label it is."""
    return label.split("-", 1)[-1]


def _tag(label: str) -> str:
    return label[2:] if label.startswith(("B-", "I-")) else label
