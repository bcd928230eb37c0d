"""Classes of texts."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from isorun.graph.tasks import SEQUENCE
from isorun.models.activations import ACTIVATIONS, softmax
from isorun.models.tokenizer import Text
from isorun.system.arguments import check_choice, check_count
from isorun.system.cleanup import closed_on_error
from isorun.text.encoded import Encoded
from isorun.text.heads import head_outputs, labels_of, reject_modules
from isorun.text.model import Array, TextModel

FUNCTIONS = {"softmax": softmax, "sigmoid": ACTIVATIONS["Sigmoid"], "none": ACTIVATIONS["Identity"]}
"""From logits to scores, by the names of transformers' pipeline."""

_BY_PROBLEM = {"regression": "none", "multi_label_classification": "sigmoid"}


class Class(NamedTuple):
    """A class of a text.

    Attributes:
        label: its name.
        score: its probability, or its logit where no function is applied.
    """

    label: str
    score: float


class Classifier(TextModel):
    """Classifies texts, or pairs of texts, as transformers' text-classification pipeline.

    ::

        with isorun.Classifier("distilbert-base-uncased-finetuned-sst-2-english") as classifier:
            for (best,) in classifier.classify(["I like this.", "I do not."]):
                print(best.label, best.score)

    Args:
        model: a checkpoint's folder or name, or an ONNX file with the output ``logits``, as for
            :class:`isorun.Embedder`.
        function: from logits to scores: ``"softmax"``, ``"sigmoid"`` or ``"none"``. ``None`` for the model's: by
            ``problem_type`` in ``config.json``: none for a regression, the sigmoid for several labels at once; in all
            other cases the sigmoid for one class, whose softmax is always 1, and the softmax for several.
        max_length, batch_tokens, session_options: as for :class:`isorun.Embedder`.

    Attributes:
        labels: the names of the classes.

    Raises:
        InvalidModel: there is no such model, or it has no tokenizer or no logits of texts.
        InvalidArgument: an unknown function.
        IsorunError: as :class:`isorun.Session`.
    """

    reads_pairs = True
    reads_one_token = True

    def __init__(
        self,
        model: str | os.PathLike[str],
        *,
        function: str | None = None,
        max_length: int | None = None,
        batch_tokens: int | None = None,
        **session_options: Any,
    ) -> None:
        if function is not None:
            _named(function)
        super().__init__(model, max_length=max_length, batch_tokens=batch_tokens, **session_options)
        with closed_on_error(self):
            settings = self.settings
            reject_modules(settings)
            self.labels: list[str] = labels_of(settings, self.output.shape or ())
            default = "sigmoid" if len(self.labels) == 1 else "softmax"
            self._function = FUNCTIONS[function or _BY_PROBLEM.get(settings.problem_type or "", default)]

    def classify(
        self,
        texts: Iterable[Text] | Encoded,
        *,
        top_k: int | None = 1,
        function: str | None = None,
        progress: bool | None = None,
    ) -> list[list[Class]]:
        """The classes of each text, best first.

        Args:
            texts: texts or pairs, as for :meth:`isorun.CrossEncoder.predict`. A pair stays one if its second text is
                empty, of which transformers' pipeline reads the first text alone.
            top_k: how many classes to return for each text; ``None`` for all.
            function: for these scores, as for the class; ``None`` for the classifier's.
            progress: as in :meth:`isorun.Embedder.embed`.

        Raises:
            InvalidFeeds: an item is neither a str nor a pair of str, or not valid Unicode.
            InvalidArgument: ``texts`` is a single text or pair, a table or a collection without order, or ``top_k`` is
                not a positive number.

        Warns:
            TruncationWarning: texts exceed ``max_length`` and were cut.
        """
        return self._classes(self.scores(texts, function=function, progress=progress), top_k)

    async def aclassify(
        self, texts: Iterable[Text] | Encoded, *, top_k: int | None = 1, function: str | None = None
    ) -> list[list[Class]]:
        """As :meth:`classify`, without blocking the event loop."""
        items = self._items_or_tokens(texts)
        return self._classes(await self._arun(items, self._finisher(function), (len(self.labels),)), top_k)

    def scores(
        self, texts: Iterable[Text] | Encoded, *, function: str | None = None, progress: bool | None = None
    ) -> Array:
        """The scores of all classes, float32 of shape (number of texts, classes), in the order of :attr:`labels`.

        Raises:
            InvalidFeeds, InvalidArgument: as :meth:`classify`.
        """
        return self._collect(self._items_or_tokens(texts), self._finisher(function), (len(self.labels),), progress)

    def _choose(self, outputs: dict[str, int]) -> list[str]:
        return head_outputs(
            self.folder,
            outputs,
            SEQUENCE,
            instead="For vectors of texts use Embedder, for classes of words TokenClassifier",
        )

    def _finisher(self, function: str | None) -> Callable[[Array, npt.NDArray[np.int64]], Array]:
        apply = self._function if function is None else _named(function)
        return lambda output, _: apply(output)

    def _classes(self, scores: Array, top_k: int | None) -> list[list[Class]]:
        top_k = check_count(top_k, "top_k", optional=True)
        order = np.argsort(-scores, axis=1, kind="stable")[:, :top_k]
        return [
            [Class(self.labels[index], float(row[index])) for index in best]
            for row, best in zip(scores, order, strict=True)
        ]


def _named(function: str) -> Callable[[Array], Array]:
    check_choice(function, "function", FUNCTIONS)
    return FUNCTIONS[function]
