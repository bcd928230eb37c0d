"""How accurate a precision's outputs are compared with fp32's, request by request, and what a search keeps.

A request is a row of a batch. An output's values for all its real tokens form one vector, with one cosine to fp32's.
Requests are held out of calibration (:mod:`isorun.compilation.corpus`) and grouped by kind. Where the model makes
vectors of texts, their neighbours among all requests are compared too (:mod:`isorun.quality.neighbours`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from isorun.compilation import corpus
from isorun.compilation.options import QUALITY, TOLERANCE, Options
from isorun.errors import BackendFailed, InvalidFeeds, UnsupportedModel
from isorun.models.lowering import ModelGraphs
from isorun.models.vectors import TextVectors
from isorun.parity import Parity, Tolerance, compare
from isorun.parity.samples import random_feeds
from isorun.quality import FEWEST, Agreement, Interval, agreement
from isorun.quality.labels import Labels, Score
from isorun.types import Feeds, ModelInfo

MARGIN = 2
"""How many times the error of the worst held-out request an unseen one may have (docs/precision-auto.md)."""

_TIMED = (1, 128)  # batch and sequence, unless the model fixes them

Run = Callable[[Feeds], Sequence[Any]]
"""Runs a model on feeds and returns its outputs in the model's order."""


_WHOLE = ("fp32", "fp64")


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A backend and a precision that were tested.

    Attributes:
        backend, precision: their names.
        milliseconds: the median time of a request, which is one row of a batch; ``None`` if it was not timed.
        slowdown: how many times as long as the fastest candidate it took; ``None`` likewise.
        cosine: the minimum cosine of any held-out request's outputs to those in fp32; ``None`` if there is none.
        worst: the kind of that request.
        cosines: the minimum cosine of each kind.
        neighbours: the share of a text's nearest neighbours that is kept: ``value`` and the ends of its interval,
            ``low`` and ``high``. Empty if the model makes no vectors.
        task: what its vectors score by the caller's labels (:class:`isorun.quality.labels.Score`); empty without.
        reason: why it cannot be chosen; empty if it can.
    """

    backend: str
    precision: str
    milliseconds: float | None = None
    slowdown: float | None = None
    cosine: float | None = None
    worst: str | None = None
    cosines: Mapping[str, float | None] = field(default_factory=dict)
    neighbours: Mapping[str, float] = field(default_factory=dict)
    task: Mapping[str, Any] = field(default_factory=dict)
    reason: str = ""


class Labelled(NamedTuple):
    """Labels, and their texts as feeds, in the same order."""

    labels: Labels
    feeds: Sequence[Feeds]

    def vectors(self, run: Run, make: TextVectors) -> np.ndarray:
        """The vectors of the texts: (texts, width).

        Raises:
            InvalidFeeds: a text has no token.
        """
        vectors = np.concatenate([make(run(batch), batch) for batch in self.feeds])
        if len(vectors) != len(self.labels.texts):
            raise InvalidFeeds("A labelled text has no token. Remove it")
        return vectors


@dataclass(frozen=True, slots=True)
class Required:
    """What a candidate must reach on held-out requests.

    Attributes:
        tolerance: the minimum cosine of any request's outputs to fp32.
        neighbours: the minimum share of a text's nearest neighbours that is kept, at the low end of its interval.
        vectors: makes the vectors of texts; ``None`` if the model makes none, or only random tokens are judged.
        labelled: labelled texts, which decide instead of the neighbours; ``None`` without.
    """

    tolerance: float
    neighbours: float = QUALITY
    vectors: TextVectors | None = None
    labelled: Labelled | None = None

    @property
    def cosine(self) -> float:
        """The minimum cosine of held-out requests for unseen ones to be within the tolerance."""
        return 1 - (1 - self.tolerance) / MARGIN

    @classmethod
    def of(cls, options: Options, graphs: ModelGraphs) -> Required:
        """What a session's options require of a model.

        Raises:
            UnsupportedModel: ``quality`` is set, and the model makes no vectors, or there are no texts to compare.
        """
        tolerance = TOLERANCE if options.tolerance is None else options.tolerance
        vectors, why = TextVectors.find(graphs.source, graphs.info)
        if vectors and not corpus.has_tokenizer(graphs) and not corpus.split(options.samples)[1]:
            vectors, why = None, "there is no tokenizer beside the model, and random tokens have no neighbours"
        if options.quality is not None and vectors is None:
            raise UnsupportedModel(f"`quality` needs a model that makes vectors of texts: {why}. Omit it")
        return cls(tolerance, QUALITY if options.quality is None else options.quality, vectors)

    def as_dict(self) -> dict[str, Any]:
        """Plain data for provenance."""
        required = {"tolerance": self.tolerance, "required": self.cosine}
        return required | ({"neighbours": self.neighbours} if self.vectors else {})


def limits(cosine: float) -> Tolerance:
    """The limits on a request's outputs for a minimum cosine.

    A cosine does not depend on size, so the root mean square of the error is limited too: to 1.5 times the distance
    between vectors of equal length at that angle.
    """
    return Tolerance(max_rel=None, rms=min(0.99, 1.5 * float(np.sqrt(2 * (1 - cosine))) + 1e-6), cosine=cosine)


class ReferenceOutputs(NamedTuple):
    """What candidates are compared with.

    Attributes:
        info: the model.
        kinds: held-out requests, by kind.
        outputs: the model's outputs in fp32 for each of them.
        required: what they must reach.
        labelled: the vectors of the labelled texts in fp32, (texts, width); ``None`` without labels.
    """

    info: ModelInfo
    kinds: Mapping[str, Sequence[Feeds]]
    outputs: Mapping[str, Sequence[Sequence[Any]]]
    required: Required
    labelled: np.ndarray | None = None

    @classmethod
    def of(
        cls, run: Run, info: ModelInfo, kinds: Mapping[str, Sequence[Feeds]], required: Required
    ) -> ReferenceOutputs:
        """The outputs that a run in fp32 returns."""
        outputs = {kind: [run(feeds) for feeds in batches] for kind, batches in kinds.items()}
        labelled, vectors = required.labelled, required.vectors
        expected = None if labelled is None or vectors is None else labelled.vectors(run, vectors)
        return cls(info, kinds, outputs, required, expected)

    def judge(self, candidate: Candidate, run: Run) -> Candidate:
        """Run a candidate on the requests and compare its outputs, in the model's order."""
        cosines: dict[str, float] = {}
        reasons: dict[str, str] = {}
        kept: list[Sequence[Any]] = []
        for kind, batches in self.kinds.items():
            for feeds, expected in zip(batches, self.outputs[kind], strict=True):
                try:
                    kept.append(run(feeds))
                    parity = differ(self.info, kept[-1], expected, feeds, limits(self.required.cosine))
                except BackendFailed as error:
                    return replace(candidate, cosines=cosines, reason=str(error))
                cosine = parity.as_dict()["cosine"]
                if cosine is not None:
                    cosines[kind] = min(cosine, cosines.get(kind, cosine))
                if parity.reasons:
                    stated = next((reason for reason in parity.reasons if ": cosine is" in reason), parity.reasons[0])
                    reasons.setdefault(kind, f"{kind}: {stated}")
        worst = min(cosines, key=lambda kind: cosines[kind], default=None)
        reason = reasons.get(worst or "", next(iter(reasons.values()), ""))
        neighbours = self._neighbours(kept)
        score = None
        if self.labelled is not None:
            try:
                score = self._score(run) if not reason else None
            except BackendFailed as error:
                reason = str(error)
        decides = neighbours if self.labelled is None else score
        # fp32 is what is kept: with few texts, the interval of a perfect score reaches below a high minimum.
        if not reason and decides is not None and candidate.precision not in _WHOLE:
            reason = decides.shortfall(self.required.neighbours)
        return replace(
            candidate,
            cosine=cosines.get(worst or ""),
            worst=worst,
            cosines=dict.fromkeys(self.kinds) | cosines,
            neighbours={} if neighbours is None else rounded(neighbours.recall),
            task={} if score is None else asdict(score),
            reason=reason,
        )

    def _score(self, run: Run) -> Score:
        """What the vectors of the labelled texts score."""
        labelled, vectors = self.required.labelled, self.required.vectors
        assert labelled is not None
        assert vectors is not None
        assert self.labelled is not None
        computed = labelled.vectors(run, vectors)
        if not np.isfinite(computed).all():
            raise BackendFailed("the vector of a labelled text is not finite")
        return labelled.labels.compare(self.labelled, computed)

    def _neighbours(self, outputs: Sequence[Sequence[Any]]) -> Agreement | None:
        """How much of a search is kept; ``None`` if the model makes no vectors, or there are too few texts."""
        vectors = self.required.vectors
        if not vectors:
            return None
        feeds = [batch for batches in self.kinds.values() for batch in batches]
        reference = [output for batches in self.outputs.values() for output in batches]
        theirs, ours = (
            np.concatenate([vectors(batch, own) for batch, own in zip(listed, feeds, strict=True)])
            for listed in (reference, outputs)
        )
        if len(theirs) < FEWEST or not np.isfinite(ours).all():
            return None
        return agreement(theirs, ours)


def rounded(interval: Interval) -> dict[str, float]:
    """An interval as plain data."""
    return {end: round(figure, 4) for end, figure in asdict(interval).items()}


def timed(info: ModelInfo) -> tuple[Feeds, str]:
    """Feeds for timing, and their shape."""
    batch, sequence = corpus.sizes(info, *_TIMED)
    feeds = random_feeds(info, np.random.default_rng(0), batch=batch, sequence=sequence)
    return feeds, f"{batch} x {sequence}" if sequence else str(batch or 1)


def differ(info: ModelInfo, results: Sequence[Any], expected: Sequence[Any], feeds: Feeds, within: Tolerance) -> Parity:
    """Compare a model's outputs with those in fp32, in the model's order."""
    return compare(_by_request(info, results, feeds), _by_request(info, expected, feeds), None, within)


def _by_request(info: ModelInfo, results: Sequence[Any], feeds: Feeds) -> dict[str, Any]:
    """Each output as one row per request that has a real token, with the values of all its real tokens."""
    mask = info.attended(feeds)
    rows: dict[str, Any] = {}
    for spec, result in zip(info.outputs, results, strict=True):
        if isinstance(result, np.ndarray) and result.size and result.ndim and result.dtype.kind in "fV":
            if mask is not None and result.shape[0] == mask.shape[0]:
                if spec.name in (info.token_outputs or ()):
                    result = result * (mask != 0).reshape(mask.shape + (1,) * (result.ndim - 2))
                result = result[(mask != 0).any(axis=1)]
            result = result.reshape(len(result), -1)
        rows[spec.name] = result
    return rows
