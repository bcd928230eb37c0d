"""Answers to questions, found in texts."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from isorun.errors import InvalidFeeds
from isorun.graph.tasks import ANSWERS
from isorun.models.activations import softmax
from isorun.models.tokenizer import Text
from isorun.system.arguments import check_count, check_flag
from isorun.text.heads import head_outputs
from isorun.text.inputs import texts_or_pairs_of
from isorun.text.model import Array
from isorun.text.token_model import Part, TokenModel

if TYPE_CHECKING:
    from tokenizers import Encoding

WINDOW = 384
"""The maximum number of tokens of a window, as in transformers' pipeline."""

_STRIDE = 128
_LOGITS = ("start_logits", "end_logits")
_IMPOSSIBLE = -10000.0  # a logit for tokens outside the context, as in transformers' pipeline


class Answer(NamedTuple):
    """An answer in a context.

    Attributes:
        text: the answer; empty if the context has none.
        score: the probability of its first token times that of its last; of equal answers, the sum.
        start, end: the positions in the context of its first character, and after its last one.
    """

    text: str
    score: float
    start: int
    end: int


class _Found(NamedTuple):
    answers: list[Answer]
    none: float  # the score of no answer


class QuestionAnswerer(TokenModel):
    """Finds the answers to questions in texts, as the question-answering pipeline of transformers 4 did.

    ::

        with isorun.QuestionAnswerer("deepset/roberta-base-squad2") as answerer:
            ((best,),) = answerer.answer([("Where do I live?", "My name is Sarah and I live in London.")])
            print(best.text, best.score)

    Args:
        model: a checkpoint's folder or name, or an ONNX file with the outputs ``start_logits`` and ``end_logits``, as
            for :class:`isorun.Embedder`.
        max_length: the maximum number of tokens of a question with a part of its context; ``None`` for 384, or the
            model's if it is less.
        batch_tokens, session_options: as for :class:`isorun.Embedder`.

    Raises:
        InvalidModel: there is no such model, or it has no tokenizer or no such outputs.
        UnsupportedModel: its tokenizer pads on the left.
        IsorunError: as :class:`isorun.Session`.
    """

    reads_pairs = True

    def __init__(
        self,
        model: str | os.PathLike[str],
        *,
        max_length: int | None = None,
        batch_tokens: int | None = None,
        **session_options: Any,
    ) -> None:
        super().__init__(model, max_length=max_length, batch_tokens=batch_tokens, **session_options)
        if self.tokenizer.settings.padding_side == "left":
            self.close()
            raise self.tokenizer.settings.unsupported(
                "padding_side",
                "such a model may read the context first. If it reads the question first, set it to right",
            )
        if max_length is None:
            self.max_length: int = min(filter(None, (self.max_length, WINDOW)))
            self._opened_length = self.max_length
        names = [spec.name for spec in self.session.get_outputs()]
        self._order = [names.index(name) for name in _LOGITS]

    def answer(
        self,
        pairs: Iterable[Text],
        *,
        top_k: int = 1,
        stride: int | None = None,
        max_answer_tokens: int = 15,
        no_answer: bool = False,
        progress: bool | None = None,
    ) -> list[list[Answer]]:
        """The answers to each question, best first.

        Args:
            pairs: tuples or lists of a question and its context.
            top_k: how many answers to return for each, at most.
            stride: how many tokens each window of a long context shares with the one before; ``None`` for 128, or half
                of ``max_length`` if it is less.
            max_answer_tokens: the maximum number of tokens of an answer.
            no_answer: whether one of the answers may be that there is none, with an empty text.
            progress: as in :meth:`isorun.Embedder.embed`.

        Raises:
            InvalidFeeds: an item is not a pair of str, is not valid Unicode, or its question leaves no room for a part
                of the context.
            InvalidArgument: ``pairs`` is a single pair, a table or a collection without order; or another argument is
                not in its range.
        """
        items, finish, stride = self._prepared(pairs, top_k, stride, max_answer_tokens, no_answer)
        answers = self._results(items, finish, overlap=stride, progress=progress)
        return [_best(parts, top_k, no_answer=no_answer) for parts in answers]

    async def aanswer(
        self,
        pairs: Iterable[Text],
        *,
        top_k: int = 1,
        stride: int | None = None,
        max_answer_tokens: int = 15,
        no_answer: bool = False,
    ) -> list[list[Answer]]:
        """As :meth:`answer`, without blocking the event loop."""
        items, finish, stride = self._prepared(pairs, top_k, stride, max_answer_tokens, no_answer)
        answers = await self._aresults(items, finish, overlap=stride)
        return [_best(parts, top_k, no_answer=no_answer) for parts in answers]

    def _prepared(
        self, pairs: Iterable[Text], top_k: int, stride: int | None, longest: int, no_answer: bool
    ) -> tuple[Sequence[Text], Callable[[Part, list[Array]], _Found], int]:
        top_k = check_count(top_k, "top_k")
        longest = check_count(longest, "max_answer_tokens")
        no_answer = check_flag(no_answer, "no_answer")
        assert self.max_length is not None
        stride = self._check_overlap(stride)
        items = texts_or_pairs_of(pairs, "pairs")
        for position, item in enumerate(items):
            if isinstance(item, str):
                raise InvalidFeeds(f"Text {position} must be a pair of a question and its context, got a str")
        stride = min(self.max_length // 2, _STRIDE) if stride is None else stride
        if items:
            self._check_questions(items, stride)
        classifier = self.tokenizer.library.token_to_id(self.tokenizer.special_tokens.get("cls_token", ""))

        def finish(part: Part, outputs: list[Array]) -> _Found:
            start, end = (outputs[position] for position in self._order)
            return _answers(part, start, end, top_k * 2 + 10, longest, classifier)

        return items, finish, stride

    def _check_questions(self, pairs: Sequence[Text], stride: int) -> None:
        """Reject questions beside which no window of the context fits."""
        assert self.max_length is not None
        special = self.tokenizer.library.num_special_tokens_to_add(True)
        single = self.tokenizer.library.num_special_tokens_to_add(False)
        questions = [*dict.fromkeys(pair[0] for pair in pairs)]
        encodings = self.tokenizer.encodings(questions, None)
        lengths = {key: len(encoding.ids) - single for key, encoding in zip(questions, encodings, strict=True)}
        for position, pair in enumerate(pairs):
            question = pair[0]
            room = self.max_length - special - lengths[question]
            if room <= stride and len(self.tokenizer.encodings([pair], None)[0].ids) > self.max_length:
                raise InvalidFeeds(
                    f"Text {position}: its question of {lengths[question]} tokens leaves {max(room, 0)} of "
                    f"{self.max_length} for the context, and windows share {stride}. Shorten it, or reduce stride"
                )

    def _choose(self, outputs: dict[str, int]) -> list[str]:
        return head_outputs(
            self.folder, outputs, ANSWERS, _LOGITS, instead="Use a model that is trained for extractive answers"
        )


def _answers(part: Part, start: Array, end: Array, count: int, longest: int, classifier: int | None) -> _Found:
    """The answers in a part of a context.

    Args:
        part: a question and a window of its context.
        start, end: the logits of each token to be the first or last one of the answer.
        count: how many to return, at most.
        longest: the maximum number of tokens of an answer.
        classifier: the id of the token whose probability is that of no answer.
    """
    text, encoding = part
    if not encoding.ids:  # both are empty, and the tokenizer adds no special tokens
        return _Found([], 1.0)
    ids, context = np.array(encoding.ids), text[1]
    in_context = np.array([owner == 1 for owner in encoding.sequence_ids])
    allowed = in_context if classifier is None else in_context | (ids == classifier)
    first, last = (softmax(np.where(allowed, logits.astype(np.float64), _IMPOSSIBLE)) for logits in (start, end))
    none = float(first[0] * last[0])
    first[0] = last[0] = 0.0
    scores = np.tril(np.triu(np.outer(first, last)), min(longest, len(ids)) - 1)
    order = np.argsort(-scores, axis=None, kind="stable")[:count]
    answers = []
    for begin, finish in zip(*np.unravel_index(order, scores.shape), strict=True):
        if in_context[begin] and in_context[finish] and 0 <= finish - begin < longest:
            at, until = _characters(encoding, int(begin), int(finish))
            answers.append(Answer(context[at:until], float(scores[begin, finish]), at, until))
    return _Found(answers, none)


def _characters(encoding: Encoding, begin: int, end: int) -> tuple[int, int]:
    """The characters of the context that tokens are in, whole words where the tokenizer knows words."""
    first, last = encoding.token_to_word(begin), encoding.token_to_word(end)
    if first is not None and last is not None:
        starts, ends = encoding.word_to_chars(first, 1), encoding.word_to_chars(last, 1)
        if starts and ends:
            return starts[0], ends[1]
    return encoding.offsets[begin][0], encoding.offsets[end][1]


def _best(parts: Sequence[_Found], top_k: int, *, no_answer: bool) -> list[Answer]:
    merged: dict[str, Answer] = {}
    for part in parts:
        for answer in part.answers:
            same = merged.get(answer.text.lower())
            merged[answer.text.lower()] = same._replace(score=same.score + answer.score) if same else answer
    answers = list(merged.values())
    if no_answer:
        answers.append(Answer("", min(part.none for part in parts), 0, 0))
    return sorted(answers, key=lambda answer: -answer.score)[:top_k]
