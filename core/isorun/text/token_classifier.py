"""Classes of the words of a text, such as names."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

from isorun.errors import InvalidArgument
from isorun.graph.tasks import TOKENS
from isorun.models.activations import softmax
from isorun.system.arguments import check_choice, checked_strings
from isorun.text.entities import STRATEGIES, Entity, Token, class_of, entities, without_overlaps
from isorun.text.heads import head_outputs, labels_of
from isorun.text.inputs import texts_of
from isorun.text.model import Array
from isorun.text.token_model import Part, TokenModel, each_token


class TokenClassifier(TokenModel):
    """Finds names and other parts of texts, as transformers' token-classification pipeline.

    ::

        with isorun.TokenClassifier("dslim/bert-base-NER") as classifier:
            for text, entities in zip(texts, classifier.classify(texts)):
                for entity in entities:
                    print(entity.label, text[entity.start : entity.end], entity.score)

    Args:
        model: a checkpoint's folder or name, or an ONNX file with the output ``logits``, as for
            :class:`isorun.Embedder`.
        max_length, batch_tokens, session_options: as for :class:`isorun.Embedder`.

    Attributes:
        labels: the names of the classes.

    Raises:
        InvalidModel: there is no such model, or it has no tokenizer or no logits of tokens.
        IsorunError: as :class:`isorun.Session`.
    """

    labels: list[str]

    def _prepare(self) -> None:
        self.labels = labels_of(self.settings, self.output.shape or ())
        library = self.tokenizer.library
        self._has_words = bool(getattr(library.model, "continuing_subword_prefix", None))
        self._unknown = library.token_to_id(self.tokenizer.special_tokens.get("unk_token", ""))

    def classify(
        self,
        texts: Iterable[str],
        *,
        strategy: str = "simple",
        stride: int | None = None,
        ignore_labels: Collection[str] = ("O",),
        progress: bool | None = None,
    ) -> list[list[Entity]]:
        """The entities of each text, in their order.

        Args:
            texts: in a collection as for :meth:`isorun.Embedder.embed`.
            strategy: how tokens are joined. ``"none"``: each is an entity. ``"simple"``: neighbors of one class are.
                With ``"first"``, ``"average"`` and ``"max"`` the tokens of a word have one class first: that of its
                first token, of the mean of its probabilities, or of its highest probability.
            stride: how many tokens each window of a text longer than ``max_length`` shares with the one before;
                ``None`` to cut such texts.
            ignore_labels: classes that are left out: those of entities, which with ``"none"`` only have a prefix
                ``B-`` or ``I-``.
            progress: as in :meth:`isorun.Embedder.embed`.

        Raises:
            InvalidFeeds: an item of ``texts`` is not a str, or not valid Unicode.
            InvalidArgument: ``texts`` is a single text, a table or a collection without order; an unknown strategy or
                class; or a stride that is not less than a window, or with the strategy ``"none"``.

        Warns:
            TruncationWarning: texts exceed ``max_length`` and were cut.
        """
        finish = self._finisher(strategy, stride, ignore_labels)
        return [_joined(parts) for parts in self._results(texts_of(texts), finish, overlap=stride, progress=progress)]

    async def aclassify(
        self,
        texts: Iterable[str],
        *,
        strategy: str = "simple",
        stride: int | None = None,
        ignore_labels: Collection[str] = ("O",),
    ) -> list[list[Entity]]:
        """As :meth:`classify`, without blocking the event loop."""
        finish = self._finisher(strategy, stride, ignore_labels)
        return [_joined(parts) for parts in await self._aresults(texts_of(texts), finish, overlap=stride)]

    def _finisher(
        self, strategy: str, stride: int | None, ignore_labels: Collection[str]
    ) -> Callable[[Part, list[Array]], list[Entity]]:
        check_choice(strategy, "strategy", STRATEGIES)
        ignored = frozenset(checked_strings(ignore_labels, "ignore_labels"))
        names = {label if strategy == "none" else class_of(label) for label in self.labels}
        for name in sorted(ignored - {"O"}):  # the default, which some models lack
            check_choice(name, "ignore_labels", names)
        if stride is not None and strategy == "none":
            raise InvalidArgument('strategy must not be "none" with a stride: windows share tokens. Use "simple"')
        self._check_overlap(stride)

        def finish(part: Part, outputs: list[Array]) -> list[Entity]:
            grouped = entities(self._tokens(part, softmax(outputs[0])), self.labels, strategy, self.tokenizer.join)
            return [entity for entity in grouped if entity.label not in ignored]

        return finish

    def _tokens(self, part: Part, scores: Array) -> list[Token]:
        text, encoding = part
        assert isinstance(text, str)
        ids, offsets = encoding.ids, encoding.offsets
        words = [self.tokenizer.library.id_to_token(number) or "" for number in ids]  # what was matched may have spaces
        tokens = []
        for index in each_token(encoding):
            start, end = offsets[index]
            word = words[index]
            if ids[index] == self._unknown:
                word, is_subword = text[start:end], False
            elif self._has_words:
                is_subword = len(word) != end - start
            else:
                is_subword = start > 0 and " " not in text[start - 1 : start + 1]
            tokens.append(Token(word, scores[index], start, end, index, is_subword))
        return tokens

    def _choose(self, outputs: dict[str, int]) -> list[str]:
        return head_outputs(self.folder, outputs, TOKENS, instead="For classes of texts use Classifier")


def _joined(parts: list[list[Entity]]) -> list[Entity]:
    return parts[0] if len(parts) == 1 else without_overlaps(entity for part in parts for entity in part)
