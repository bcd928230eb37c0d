"""Models that answer for the tokens of a text: what they say refers to its characters."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from isorun.errors import InvalidArgument
from isorun.models.tokenizer import Text
from isorun.system.arguments import check_count
from isorun.text.model import Array, TextModel, progress_bar, windows

if TYPE_CHECKING:
    from tokenizers import Encoding

Result = TypeVar("Result")


class Part(NamedTuple):
    """A text, or a window of one that is longer than the model reads.

    Attributes:
        text: the text or the pair, whole.
        encoding: the tokens of the part, with their positions in the text.
    """

    text: Text
    encoding: Encoding


class TokenModel(TextModel):
    """A model with an output for each token."""

    def _results(
        self,
        texts: Sequence[Text],
        finish: Callable[[Part, list[Array]], Result],
        *,
        overlap: int | None = None,
        progress: bool | None = None,
    ) -> list[list[Result]]:
        """What each part of each text results in.

        Args:
            texts: texts or pairs.
            finish: from a part and the model's outputs for it, a row for each token, to its result.
            overlap: how many tokens a window of a long text shares with the one before; ``None`` to cut long texts.
            progress: as for :meth:`isorun.Embedder.embed`.
        """
        results: list[list[Result]] = []
        with progress_bar(len(texts), progress) as bar:
            for window in windows(texts):
                parts, owners = self._parts(window, overlap)
                finished: dict[int, Result] = {}
                for batch, outputs in self._run(self._batches_of([part.encoding for part in parts])):
                    for row, position in enumerate(batch.positions):
                        part = parts[position]
                        size = len(part.encoding.ids)
                        finished[position] = finish(part, [output[row, :size] for output in outputs])
                        bar.update(int(position == 0 or owners[position] != owners[position - 1]))
                results += _grouped([finished[position] for position in range(len(parts))], owners, len(window))
        return results

    async def _aresults(
        self, texts: Sequence[Text], finish: Callable[[Part, list[Array]], Result], *, overlap: int | None = None
    ) -> list[list[Result]]:
        """As :meth:`_results`, sharing batches with other callers."""
        if not texts:
            return []
        self.session.check_room(len(texts))
        parts, owners = await asyncio.to_thread(self._parts, texts, overlap)
        outputs = await self._aoutputs([part.encoding for part in parts])
        finished = [
            finish(part, [output[0, : len(part.encoding.ids)] for output in own])
            for part, (_, own) in zip(parts, outputs, strict=True)
        ]
        return _grouped(finished, owners, len(texts))

    def _parts(self, texts: Sequence[Text], overlap: int | None) -> tuple[list[Part], list[int]]:
        """The parts of texts, and the position of each one's text."""
        encodings = self._encode(texts, offsets=True, overlap=overlap)
        parts: list[Part] = []
        owners: list[int] = []
        for owner, (text, encoding) in enumerate(zip(texts, encodings, strict=True)):
            windows = [encoding] if overlap is None else [encoding, *encoding.overflowing]
            parts += [Part(text, window) for window in windows]
            owners += [owner] * len(windows)
        return parts, owners

    def _check_overlap(self, overlap: int | None) -> Any:
        if overlap is None:
            return None
        overlap = check_count(overlap, "stride", least=0)
        if self.max_length is not None and overlap >= (room := self.max_length - self.tokenizer.added_tokens()):
            raise InvalidArgument(f"stride must be less than the {room} tokens of text in a window, got {overlap}")
        return overlap


def _grouped(results: Sequence[Result], owners: Sequence[int], texts: int) -> list[list[Result]]:
    groups: list[list[Result]] = [[] for _ in range(texts)]
    for result, owner in zip(results, owners, strict=True):
        groups[owner].append(result)
    return groups


def each_token(encoding: Encoding) -> Iterator[int]:
    """The positions of tokens of the text, without special tokens."""
    return (index for index, special in enumerate(encoding.special_tokens_mask) if not special)
