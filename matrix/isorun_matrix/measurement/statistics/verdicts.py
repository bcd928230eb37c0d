"""Whether cells differ, at 95 % confidence for all comparisons of a family together.

Runs of one process resemble each other more than those of two processes, so a process counts as one value: the
logarithm of its median. Two rules, and no others:

- Cells of one session are compared in the rounds that they share, so that what slows down a whole round cancels out
  (:class:`Family`): Tukey's range test with the standard error of a median, from variances that are moderated as in
  limma (Smyth, "Linear Models and Empirical Bayes Methods", 2004), since a cell may be noisier than the others.
- Runs share no rounds, and what differs between sessions (neighbours, frequency, memory layout) is not in their rounds:
  :func:`change` needs a difference that neither rounds nor :class:`Sessions` explain.

``benchmarks/coverage.py`` measures how often both are wrong.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

import numpy as np

from isorun_matrix.measurement.statistics.latencies import Interval

Medians = Mapping[Hashable, float]
"""The median of a cell in each round, by what identifies the round."""

LEVEL = 0.95
"""The confidence of all comparisons of a family together."""

NEEDED = 3
"""The minimum number of common rounds for a verdict."""

_SMALL = 0.02  # a smaller difference is never a verdict
_TIED = 0.05  # cells are tied if the whole interval of their ratio is within this
_ASSUMED = 0.1  # the standard deviation between sessions where there are too few to measure it
_SESSIONS = 3  # minimum to measure it
_LEAST = 1e-4  # of the mean variance of pairs: one of equal values has a logarithm, too


@dataclass(frozen=True)
class Ratio:
    """The time of a cell divided by that of another.

    Attributes:
        ratio: the median of the common rounds.
        interval: of the true ratio, at :data:`LEVEL` for all pairs of the family together.
        rounds: how many the cells have in common; of a comparison through a third cell, the smaller number.
        verdict: ``slower`` if the ratio exceeds ``needed``; ``tied``, if the interval is within 5 % of 1; else
            ``ambiguous``.
        needed: the smallest ratio that chance and noise do not explain.
    """

    ratio: float
    interval: Interval
    rounds: int
    verdict: str
    needed: float


class _Difference(NamedTuple):
    """The median and the mean log ratio of two cells, the variance of the median and its degrees of freedom, and the
    rounds."""

    middle: float
    mean: float
    variance: float
    freedom: float
    rounds: int


@dataclass(frozen=True)
class Family:
    """Cells that were measured in the same rounds of one session.

    Attributes:
        cells: all of them, a control included.
        compared: how many of them are compared with each other.
        floor: the ratio, less 1, that a cell has to itself.
    """

    cells: Sequence[Medians]
    compared: int
    floor: float = 0.0

    def ratio(self, cell: int, baseline: int) -> Ratio | None:
        """How the time of a cell compares with that of another, by their indices.

        The half-width of the interval is that of Tukey and Kramer: the quantile of the studentized range, times the
        standard error of the median ratio, by the square root of 2. The error is a mean of that of this pair and
        that of all pairs, which counts the more, the less the pairs differ; or that of this pair alone where an F test
        at 5 % shows it to be larger: an unsteady cell is not judged by the noise of steady ones, nor they by its
        noise. Cells without enough common rounds are compared through the third one with the smallest error.

        The interval contains that of the mean, too, which is close to normal where rounds are not: the median of
        processes that are either fast or slow jumps between the two.

        Returns:
            The comparison; ``None`` if fewer than three common rounds connect the cells.
        """
        difference = self._difference(cell, baseline) or min(
            (through for third in range(len(self.cells)) if (through := self._through(cell, third, baseline))),
            key=lambda through: through.variance,
            default=None,
        )
        if difference is None:
            return None
        middle, mean, variance, freedom, rounds = difference
        freedom = math.floor(2 * freedom) / 2  # few values, since a quantile takes long
        half = _quantile("studentized_range", LEVEL, max(2, self.compared), freedom) * math.sqrt(variance / 2)
        half = max(half, abs(mean - middle) + half / math.sqrt(rounds * _of_median(rounds)))
        threshold = max(half, math.log1p(max(self.floor, _SMALL)))
        tied = abs(middle) + half <= math.log1p(_TIED)
        verdict = "slower" if middle > threshold else "tied" if tied else "ambiguous"
        interval = Interval(math.exp(middle - half), math.exp(middle + half), LEVEL)
        return Ratio(math.exp(middle), interval, rounds, verdict, math.exp(threshold))

    def _difference(self, cell: int, baseline: int) -> _Difference | None:
        logs = _log_ratios(self.cells[cell], self.cells[baseline])
        if len(logs) < NEEDED:
            return None
        (prior, certainty, most), freedom = self._prior, len(logs) - 1
        own = float(np.var(logs, ddof=1))
        moderated = prior + (own - prior) * freedom / (freedom + certainty)
        variance = own if own > moderated * _quantile("f", LEVEL, freedom, most) else moderated
        freedom_of_both = min(freedom + certainty, most)
        middle, mean = float(np.median(logs)), float(np.mean(logs))
        return _Difference(middle, mean, variance * _of_median(len(logs)), freedom_of_both, len(logs))

    def _through(self, cell: int, third: int, baseline: int) -> _Difference | None:
        first, second = self._difference(cell, third), self._difference(third, baseline)
        if first is None or second is None:
            return None
        freedom, rounds = min(first.freedom, second.freedom), min(first.rounds, second.rounds)
        middle, mean = first.middle + second.middle, first.mean + second.mean
        return _Difference(middle, mean, first.variance + second.variance, freedom, rounds)

    @cached_property
    def _prior(self) -> tuple[float, float, int]:
        """The variance of a log ratio as all pairs have it, its degrees of freedom, and the most that a pair can have:
        those of a two-way layout of the cells and the rounds.

        By the moments of the logarithms of the pairs' variances. Where these differ no more than chance explains, it is
        their mean, and certain. The degrees of freedom are a third of Smyth's: pairs with a common cell are not
        independent, and a single noisy cell is unlike the distribution that he assumes.
        """
        pairs = {
            pair: logs
            for pair in itertools.combinations(range(len(self.cells)), 2)
            if len(logs := _log_ratios(*(self.cells[index] for index in pair))) >= NEEDED
        }
        if not pairs:
            return 0.0, math.inf, 1
        from scipy.special import digamma, polygamma

        freedom = np.array([len(logs) - 1 for logs in pairs.values()])
        variances = np.array([float(np.var(logs, ddof=1)) for logs in pairs.values()])
        cells = len(set(itertools.chain.from_iterable(pairs)))
        mean, most = float(np.average(variances, weights=freedom)), max(1, round((cells - 1) * float(freedom.mean())))
        if mean == 0 or len(pairs) == 1:
            return mean, math.inf, most
        logs = np.log(np.maximum(variances, _LEAST * mean)) - digamma(freedom / 2) + np.log(freedom / 2)
        excess = float(np.var(logs, ddof=1) - polygamma(1, freedom / 2).mean())
        if excess <= 0:
            return mean, math.inf, most
        half = (1 + math.sqrt(1 + 2 * excess)) / (2 * excess)  # of Smyth's; its trigamma is the excess, nearly
        return math.exp(float(logs.mean() + digamma(half)) - math.log(half)), 2 * half / 3, most


@dataclass(frozen=True)
class Sessions:
    """How much medians differ between sessions, as standard deviations of logarithms.

    Attributes:
        shift: of what all cells of a session have in common.
        own: of what differs from cell to cell.
        runs: how many sessions it was measured from; 0 if it is assumed.
        cells: how many cells it was measured from; with a single one, ``shift`` is of both.
        freedom: the degrees of freedom of ``own``.
    """

    shift: float = _ASSUMED
    own: float = 0.0
    runs: int = 0
    cells: int = 1
    freedom: int = 0

    @classmethod
    def of(cls, runs: Sequence[Mapping[Any, float]]) -> Sessions:
        """From the medians of identical cells in several sessions, by the ids of the cells: the effects of sessions and
        of cells by least squares, as a cell may have failed in some of them.

        With fewer than three sessions, or no cell in two of them, a standard deviation of 10 % is assumed.
        """
        counts = Counter(name for run in runs for name in run)
        names = sorted(name for name, count in counts.items() if count > 1)
        runs = [run for run in runs if any(name in run for name in names)]
        if len(runs) < _SESSIONS:
            return cls()
        measured = [
            (row, column, run[name]) for row, run in enumerate(runs) for column, name in enumerate(names) if name in run
        ]
        design = np.zeros((len(measured), len(runs) + len(names)))
        for number, (row, column, _) in enumerate(measured):
            design[number, row] = design[number, len(runs) + column] = 1
        logs = np.log([median for _, _, median in measured])
        effects, _, rank, _ = np.linalg.lstsq(design, logs, rcond=None)
        freedom = len(measured) - int(rank)
        spread = math.sqrt(float(((logs - design @ effects) ** 2).sum()) / freedom) if freedom else 0.0
        return cls(float(np.std(effects[: len(runs)], ddof=1)), spread, len(runs), len(names), freedom)

    def __str__(self) -> str:
        if not self.runs:
            return f"assumed to differ by {self.shift:.0%} (standard deviation)"
        parts = f"{self.shift:.1%} in common and {self.own:.1%} for each cell"
        return f"differ by {parts} (standard deviations, {self.runs} runs)"

    def explains(self, compared: int) -> float:
        """The largest difference of logarithms between two sessions that chance explains, for any of so many cells.

        The sum of the half-widths of Student's intervals for both parts.
        """
        together = 1 if self.freedom or not self.runs else compared
        shift = math.sqrt(2) * self.shift * _student(together, self.runs - 1 if self.runs else None)
        own = math.sqrt(2) * self.own * _student(compared, self.freedom) if self.freedom else 0.0
        return shift + own


@dataclass(frozen=True)
class Change:
    """The time of a cell in a run divided by that in another run.

    Attributes:
        ratio: of the medians of the rounds; ``None`` without any.
        of: what was compared: ``p50``, or ``cpu`` (CPU time of a run).
        needed: the smallest ratio that chance, sessions and noise do not explain; ``None`` with too few rounds.
        verdict: ``slower`` or ``faster`` if the ratio exceeds that; ``same`` if not; ``too few rounds``.
    """

    ratio: float | None
    of: str
    needed: float | None
    verdict: str


def change(first: Medians, second: Medians, of: str, sessions: Sessions, compared: int, *noises: float) -> Change:
    """Compare a cell of a run with the same cell of another one.

    Args:
        first, second: the medians of the cell in each run.
        of: what they are.
        sessions: how much sessions differ.
        compared: how many cells are compared.
        noises: the noise floor of each run, as a ratio less 1.
    """
    logs = [np.log([*medians.values()]) for medians in (first, second)]
    if not all(map(len, logs)):
        return Change(None, of, None, "too few rounds")
    middle = float(np.median(logs[1]) - np.median(logs[0]))
    if min(map(len, logs)) < NEEDED:
        return Change(math.exp(middle), of, None, "too few rounds")
    variances = [float(np.var(values, ddof=1)) * _of_median(len(values)) for values in logs]
    rounds = _student(compared, _freedom(variances, logs)) * math.sqrt(sum(variances))
    threshold = max(rounds, sessions.explains(compared), math.log1p(max((_SMALL, *noises))))
    verdict = "same" if abs(middle) <= threshold else "slower" if middle > 0 else "faster"
    return Change(math.exp(middle), of, math.exp(threshold), verdict)


def self_ratio(cell: Medians, control: Medians) -> float | None:
    """How far a cell is from its control, as a ratio less 1: the noise floor; ``None`` without a common round."""
    logs = _log_ratios(cell, control)
    return math.expm1(abs(float(np.median(logs)))) if len(logs) else None


def _log_ratios(cell: Medians, baseline: Medians) -> np.ndarray:
    """The logarithm of the ratio in each common round."""
    return np.array([math.log(cell[number] / baseline[number]) for number in cell if number in baseline])


def _freedom(variances: Sequence[float], samples: Sequence[np.ndarray]) -> float:
    """The degrees of freedom of a sum of variances (Welch and Satterthwaite): many values of one sample do not make the
    variance of a smaller one more certain."""
    parts = sum(variance**2 / (len(values) - 1) for variance, values in zip(variances, samples, strict=True))
    return sum(variances) ** 2 / parts if parts else 1.0


def _of_median(count: int) -> float:
    """The variance of the median of so many values, divided by the variance of a value.

    Of normal values: exact within 2 % for an odd number, and up to 15 % too large for an even one.
    """
    return math.pi / (2 * count + math.pi - 2)


def _student(comparisons: int, freedom: float | None) -> float:
    """Student's quantile for so many comparisons in two directions (Bonferroni); ``None`` for a known variance."""
    level = 1 - (1 - LEVEL) / 2 / max(1, comparisons)
    return _quantile("norm", level) if freedom is None else _quantile("t", level, freedom)


@lru_cache(maxsize=256)
def _quantile(distribution: str, level: float, *parameters: float) -> float:
    """The quantile of a distribution of scipy's; that of the studentized range takes long."""
    from scipy import stats

    return float(getattr(stats, distribution).ppf(level, *parameters))
