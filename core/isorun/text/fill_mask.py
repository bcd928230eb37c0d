"""Words for the gaps of a text."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np

from isorun.errors import InvalidArgument, InvalidFeeds, InvalidModel
from isorun.graph.tasks import WORDS
from isorun.models.activations import softmax
from isorun.models.tokenizer import Tokenizer
from isorun.system.arguments import check_count, checked_strings
from isorun.text.heads import head_outputs
from isorun.text.inputs import texts_of
from isorun.text.model import Array
from isorun.text.token_model import Part, TokenModel

_MASKS = ("[MASK]", "<mask>")  # where no file names the token
_UNKNOWN = ("[UNK]", "<unk>")  # likewise


class Filling(NamedTuple):
    """A token in place of a mask.

    Attributes:
        word: the token, as the tokenizer decodes it.
        score: its probability.
        id: its number in the vocabulary.
        text: the text with it, without padding tokens; of several masks, only this one is replaced.
    """

    word: str
    score: float
    id: int
    text: str


class FillMask(TokenModel):
    """Fills the gaps of texts, as transformers' fill-mask pipeline.

    ::

        with isorun.FillMask("google-bert/bert-base-uncased") as filler:
            (((best, *_),),) = filler.fill(["Paris is the [MASK] of France."])
            print(best.word, best.score)

    Args:
        model: a checkpoint's folder or name, or an ONNX file with the output ``logits``, as for
            :class:`isorun.Embedder`.
        max_length, session_options: as for :class:`isorun.Embedder`.
        batch_tokens: likewise; ``None`` for 512, since there is a score for each word of the vocabulary.

    Attributes:
        mask: the token that marks a gap.

    Raises:
        InvalidModel: there is no such model, or it has no tokenizer, no logits of words, or no token for gaps.
        IsorunError: as :class:`isorun.Session`.
    """

    default_batch_tokens = 512
    mask: str

    def _prepare(self) -> None:
        self.mask = _mask(self.tokenizer)
        self._mask_id = self.tokenizer.library.token_to_id(self.mask)

    def fill(
        self,
        texts: Iterable[str],
        *,
        top_k: int = 5,
        targets: Sequence[str] | None = None,
        progress: bool | None = None,
    ) -> list[list[list[Filling]]]:
        """For each text and each of its masks the most probable tokens, best first.

        Args:
            texts: with :attr:`mask` in place of each missing token, in a collection as for
                :meth:`isorun.Embedder.embed`.
            top_k: how many tokens to return for each mask, at most.
            targets: the tokens to choose from; ``None`` for the vocabulary. Probabilities are those among all tokens.
            progress: as in :meth:`isorun.Embedder.embed`.

        Raises:
            InvalidFeeds: an item of ``texts`` is not a str, is not valid Unicode, or has no mask, or one in the part
                that is cut.
            InvalidArgument: ``texts`` is a single text, a table or a collection without order; a target is not in the
                vocabulary; or ``top_k`` is not a positive number.
        """
        finish = self._finisher(top_k, targets)
        items = texts_of(texts)
        return self._checked(items, [parts[0] for parts in self._results(items, finish, progress=progress)])

    async def afill(
        self, texts: Iterable[str], *, top_k: int = 5, targets: Sequence[str] | None = None
    ) -> list[list[list[Filling]]]:
        """As :meth:`fill`, without blocking the event loop."""
        finish = self._finisher(top_k, targets)
        items = texts_of(texts)
        return self._checked(items, [parts[0] for parts in await self._aresults(items, finish)])

    def _finisher(
        self, top_k: int, targets: Sequence[str] | None
    ) -> Callable[[Part, list[Array]], list[list[Filling]]]:
        top_k = check_count(top_k, "top_k")
        chosen = None if targets is None else self._target_ids(targets)
        decode = self.tokenizer.decode
        padding = self.tokenizer.library.token_to_id(self.tokenizer.special_tokens.get("pad_token", ""))

        def finish(part: Part, outputs: list[Array]) -> list[list[Filling]]:
            ids = np.array(part.encoding.ids)
            masks = np.flatnonzero(ids == self._mask_id)
            filled = []
            for mask, scores in zip(masks, softmax(outputs[0][masks]), strict=True):
                among = np.arange(len(scores)) if chosen is None else chosen
                best = among[np.argsort(-scores[among], kind="stable")[:top_k]]
                row = []
                for token in map(int, best):
                    tokens = [number for number in (*ids[:mask], token, *ids[mask + 1 :]) if number != padding]
                    text = decode(tokens, skip_special_tokens=len(masks) == 1)
                    word = decode([token], skip_special_tokens=False)
                    row.append(Filling(word, float(scores[token]), token, text))
                filled.append(row)
            return filled

        return finish

    def _target_ids(self, targets: Sequence[str]) -> np.ndarray:
        targets = checked_strings(targets, "targets")
        if not targets:
            raise InvalidArgument("targets must be a list of at least one token, got none")
        ids = [self.tokenizer.library.token_to_id(target) for target in targets]
        for position, (target, number) in enumerate(zip(targets, ids, strict=True)):
            if number is None:  # such as " word" of a byte-level vocabulary
                encoding = self.tokenizer.library.encode(target, add_special_tokens=False)
                if len(encoding.ids) != 1 or encoding.ids[0] in self._unknown_ids():
                    tokens = ", ".join(map(repr, encoding.tokens)) or "none"
                    raise InvalidArgument(
                        f"targets has {target!r}, which is not in the vocabulary; its tokens are {tokens}"
                    )
                ids[position] = encoding.ids[0]
        return np.array(list(dict.fromkeys(ids)))

    def _unknown_ids(self) -> set[int | None]:
        """The numbers of the token for what is not in the vocabulary."""
        library = self.tokenizer.library
        named = (self.tokenizer.special_tokens.get("unk_token"), getattr(library.model, "unk_token", None), *_UNKNOWN)
        return {library.token_to_id(name) for name in named if name is not None}

    def _checked(self, items: Sequence[str], filled: list[list[list[Filling]]]) -> list[list[list[Filling]]]:
        for position, (text, masks) in enumerate(zip(items, filled, strict=True)):
            if len(masks) < text.count(self.mask):
                count = f"{text.count(self.mask)} {self.mask}, and {len(masks)} of them"
                raise InvalidFeeds(f"Text {position} has {count} in its first {self.max_length} tokens. Shorten it")
            if not masks:
                raise InvalidFeeds(f"Text {position} has no {self.mask}")
        return filled

    def _choose(self, outputs: dict[str, int]) -> list[str]:
        return head_outputs(self.folder, outputs, WORDS, instead="Use a model that is trained with masks")


def _mask(tokenizer: Tokenizer) -> str:
    names = filter(None, [tokenizer.special_tokens.get("mask_token"), *_MASKS])
    known = next((name for name in names if tokenizer.library.token_to_id(name) is not None), None)
    if known is None:
        raise InvalidModel(f"The tokenizer {tokenizer.path} has no mask_token, which marks the gaps")
    return known
