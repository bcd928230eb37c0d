"""A task's own measure: labels in a small file, and what vectors score by them.

Each line of the file is a JSON object, of one of three kinds:

``{"texts": [one, other], "score": 4.2}``
    Pairs. Vectors score Spearman's rank correlation of their cosines with the scores.
``{"query": text, "relevant": [text, ...]}``, ``{"document": text}``
    Queries, and further documents. All documents are ranked for each query by cosine: nDCG@10 and recall@10. The text
    of the query itself is one of them only if it is listed as relevant.
``{"text": text, "class": name}``
    Classes. Each text is classified by its ten nearest neighbours among the others: accuracy and macro F1.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from isorun.errors import InvalidArgument
from isorun.quality import interval
from isorun.quality.interval import Interval
from isorun.quality.neighbours import FEWEST, ROUNDING, K, Vectors, units, without_rounding
from isorun.system import json_files, text_files
from isorun.system.arguments import is_unicode
from isorun.system.packages import require

Rows = npt.NDArray[np.intp]
_KINDS = {"pairs": {"texts", "score"}, "queries": {"query", "relevant"}, "classes": {"text", "class"}}
_DOCUMENT = {"document"}


class Measured(NamedTuple):
    """What vectors score: every figure by its name, the first one being what decides, and that figure of some rows."""

    figures: Mapping[str, float]
    of_rows: Callable[[Rows], float]


@dataclass(frozen=True, slots=True)
class Score:
    """What vectors score by labels, compared with those in fp32.

    Attributes:
        name: of the figure that decides: ``"Spearman"``, ``"nDCG@10"`` or ``"accuracy"``.
        value, base: that figure, and the same in fp32.
        kept: their ratio.
        figures: every figure.
        judged_on: :attr:`Labels.size`.
    """

    name: str
    value: float
    base: float
    kept: Interval
    figures: Mapping[str, float]
    judged_on: str

    @property
    def share(self) -> Interval:
        """What is kept, as of an :class:`~isorun.quality.neighbours.Agreement`."""
        return self.kept

    @property
    def whole(self) -> str:
        """What the share is of, in words."""
        return f"{self.name} in fp32"

    def shortfall(self, minimum: float) -> str:
        """Why the score is too low, in words; empty if the low end of what is kept reaches a minimum."""
        if self.kept.low >= minimum:
            return ""
        return (
            f"{self.name} is {self.value:.3f}, in fp32 {self.base:.3f}: keeps {self.kept} of it, required: {minimum:g} "
            "or more at the low end"
        )


@dataclass(frozen=True, slots=True)
class Labels:
    """Labelled texts.

    Attributes:
        kind: ``"pairs"``, ``"queries"`` or ``"classes"``.
        texts: each text once.
        rows: for each pair, query or labelled text, the indices of its texts: both of a pair; the query, then the
            relevant documents; the text.
        gold: the score of each pair, or the class of each text.
        documents: the indices of all documents.
    """

    kind: str
    texts: tuple[str, ...]
    rows: tuple[tuple[int, ...], ...]
    gold: tuple[Any, ...]
    documents: tuple[int, ...]

    @property
    def size(self) -> str:
        """How many labels there are, in words."""
        if self.kind == "classes":
            return f"{len(self.rows)} texts of {len(set(self.gold))} classes"
        return f"{len(self.rows)} {self.kind}, {len(self.texts)} texts"

    def compare(self, base: Vectors, vectors: Vectors) -> Score:
        """What vectors score, compared with others.

        Args:
            base: (texts, width), in fp32.
            vectors: (texts, any width).

        Raises:
            InvalidArgument: the vectors in fp32 score nothing, so the labels do not fit the model.
        """
        expected, measured = self.measure(base), self.measure(vectors)
        name = next(iter(expected.figures))
        if not expected.figures[name] > 0:  # or NaN: of equal cosines, there is no correlation
            raise InvalidArgument(
                f"{name} is {expected.figures[name]:.3f} in fp32: the labels do not fit the model. Check the file"
            )
        kept = interval.ratio(len(self.rows), measured.of_rows, expected.of_rows)
        values = measured.figures[name], expected.figures[name]
        return Score(name, *values, kept, measured.figures, self.size)

    def measure(self, vectors: Vectors) -> Measured:
        """What the vectors of the texts score."""
        return {"pairs": self._pairs, "queries": self._queries, "classes": self._classes}[self.kind](units(vectors))

    def _pairs(self, vectors: npt.NDArray[np.float64]) -> Measured:
        from scipy import stats

        first, second = np.array(self.rows).T
        cosines = without_rounding((vectors[first] * vectors[second]).sum(axis=1))
        scores = np.array(self.gold, np.float64)

        def correlation(rows: Rows) -> float:
            if not np.ptp(scores[rows]):
                return math.nan  # not defined
            if not np.ptp(cosines[rows]):
                return 0.0  # of texts that are all alike
            return float(stats.spearmanr(cosines[rows], scores[rows]).statistic)

        return Measured({"Spearman": correlation(np.arange(len(scores)))}, correlation)

    def _queries(self, vectors: npt.NDArray[np.float64]) -> Measured:
        require("Measuring labels of queries", "ir_measures", extra="labels")
        import ir_measures

        documents = np.array(self.documents)
        relevant, ranking = {}, {}
        for number, (query, *own) in enumerate(self.rows):
            ranked = without_rounding(vectors[documents] @ vectors[query])
            if query not in own:
                ranked[documents == query] = -np.inf
            nearest = np.argsort(-ranked, kind="stable")[:K]
            ranks = np.unique(ranked[nearest], return_inverse=True)[1]  # trec_eval would round to float32
            relevant[str(number)] = dict.fromkeys(map(str, own), 1)
            ranking[str(number)] = {
                str(documents[place]): float(rank) for place, rank in zip(nearest, ranks, strict=True)
            }
        measures = (ir_measures.nDCG @ K, ir_measures.R @ K)
        values = np.zeros((2, len(self.rows)))
        for metric in ir_measures.iter_calc(measures, relevant, ranking):
            values[measures.index(metric.measure), int(metric.query_id)] = metric.value
        gain, recall = values
        figures = {f"nDCG@{K}": float(gain.mean()), f"recall@{K}": float(recall.mean())}
        return Measured(figures, lambda rows: float(gain[rows].mean()))

    def _classes(self, vectors: npt.NDArray[np.float64]) -> Measured:
        vectors = vectors[[row for (row,) in self.rows]]
        names, own = np.unique(np.array(self.gold), return_inverse=True)
        voted = np.array([self._vote(row, vectors, own, len(names)) for row in range(len(own))])
        correct = voted == own
        hits = np.array([np.count_nonzero(correct & (own == name)) for name in range(len(names))])
        counts = np.bincount(voted, minlength=len(names)) + np.bincount(own, minlength=len(names))
        figures = {"accuracy": float(correct.mean()), "F1": float((2 * hits / counts).mean())}
        return Measured(figures, lambda rows: float(correct[rows].mean()))

    @staticmethod
    def _vote(row: int, vectors: npt.NDArray[np.float64], own: npt.NDArray[np.intp], count: int) -> int:
        """The class of a text by the sum of the similarities of its nearest neighbours."""
        cosines = vectors @ vectors[row]
        ranked = without_rounding(cosines)
        ranked[row] = -np.inf
        nearest = np.argsort(-ranked, kind="stable")[:K]
        votes = np.bincount(own[nearest], weights=1 + cosines[nearest], minlength=count)
        # Rounding does not decide: a vector that it turns has a cosine that changes by the sine of the angle as much.
        sines = np.sqrt(np.maximum(1 - cosines[nearest] ** 2, 0))
        return int((votes >= votes.max() - ROUNDING * (sines + ROUNDING).sum()).argmax())


def read(path: Path) -> Labels:
    """Read labels from a file with a JSON object on each line.

    Raises:
        InvalidArgument: the file is damaged, mixes kinds, or has too few labels.
    """
    return parse(objects(path), str(path))


def objects(path: Path) -> dict[str, Any]:
    """The JSON on each line of a file that is not blank, by where it is, such as ``line 1``.

    Raises:
        InvalidArgument: the file is not UTF-8, or a line is not JSON or has a key twice.
    """
    parsed = {}
    for number, line in enumerate(text_files.lines(path), start=1):
        if line.strip():
            try:
                parsed[f"line {number}"] = json_files.parse(line)
            except json_files.DuplicateKey as error:
                raise InvalidArgument(f"{path}, line {number}: {error}. Keep one") from None
            except ValueError as error:
                raise InvalidArgument(f"{path}, line {number} is not JSON: {error}") from error
    return parsed


def parse(items: Mapping[str, Any], path: str) -> Labels:
    """Labels from JSON objects.

    Args:
        items: the objects by where each is, such as ``line 1``.
        path: where they come from, for messages.

    Raises:
        InvalidArgument: they are no labels, of several kinds, or too few.
    """
    for position, item in items.items():
        if not isinstance(item, dict) or item.keys() not in (*_KINDS.values(), _DOCUMENT):
            raise InvalidArgument(f"{path}, {position}: expected {_expected()}, got {item!r:.80}")
    kinds = {kind for item in items.values() for kind, keys in _KINDS.items() if keys == item.keys()}
    if len(kinds) != 1:
        what = f"mixes {' and '.join(sorted(kinds))}" if kinds else "has no labels"
        raise InvalidArgument(f"{path} {what}. Expected one kind: {_expected()}")
    (kind,) = kinds
    places: dict[str, int] = {}
    rows: list[tuple[int, ...]] = []
    gold: list[Any] = []
    documents: list[int] = []
    known: dict[tuple[int, ...], int] = {}  # what is listed again counts once
    for position, item in items.items():
        texts = _texts(item)
        if not texts or not all(map(_is_text, texts)):
            raise InvalidArgument(f"{path}, {position}: texts must be valid Unicode and not empty, got {texts!r}")
        indices = tuple(places.setdefault(text, len(places)) for text in texts)
        documents += indices if item.keys() == _DOCUMENT else indices[1:] if kind == "queries" else ()
        if item.keys() == _DOCUMENT:
            if kind != "queries":
                raise InvalidArgument(f"{path}, {position}: a document belongs to queries, and the file has {kind}")
            continue
        if kind == "queries" and len(indices) < 2:
            raise InvalidArgument(f"{path}, {position}: the query has no relevant document")
        if kind == "pairs" and (len(indices) != 2 or not _is_number(item["score"])):
            raise InvalidArgument(f"{path}, {position}: expected two texts and a finite number, got {item!r:.200}")
        if kind == "classes" and not (isinstance(item["class"], str) or type(item["class"]) is int):
            raise InvalidArgument(f"{path}, {position}: a class must be a str or an integer, got {item['class']!r}")
        value = str(item["class"]) if kind == "classes" else item.get("score")
        key = indices[:1] if kind == "queries" else tuple(sorted(indices))  # a cosine has no direction
        if (earlier := known.setdefault(key, len(rows))) == len(rows):
            rows.append(indices)
            gold.append(value)
        elif kind == "queries":
            rows[earlier] += indices[1:]
        elif gold[earlier] != value:
            what = "pair has another score" if kind == "pairs" else "text has another class"
            raise InvalidArgument(f"{path}, {position}: the {what} than before: {texts!r}")
    if len(rows) < FEWEST:
        what = "texts" if kind == "classes" else kind
        raise InvalidArgument(f"{path} has {len(rows)} different {what}; expected {FEWEST} or more")
    if kind != "queries" and len(set(gold)) < 2:
        raise InvalidArgument(f"{path}: all labels are {gold[0]!r}, so nothing can be measured")
    return Labels(kind, tuple(places), tuple(rows), tuple(gold), tuple(set(documents)))


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip()) and is_unicode(value)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


def _texts(item: Mapping[str, Any]) -> Sequence[Any]:
    if "query" in item:
        return [item["query"], *(item["relevant"] if isinstance(item["relevant"], list) else [None])]
    if "texts" in item:
        return item["texts"] if isinstance(item["texts"], list) else [None]
    return [item.get("text", item.get("document"))]


def _expected() -> str:
    return ", or ".join(f"objects with {' and '.join(sorted(keys))}" for keys in _KINDS.values())
