"""Whether cells differ: verdicts from the medians of processes.

Runs of one process resemble each other more than those of two processes, so a process counts as one value. Cells that
were measured in the same rounds are compared in pairs (:func:`against`), so that what slows down a whole round cancels
out. Runs of a matrix, which share no rounds, are compared by permutation (:func:`permutation_test`).
``benchmarks/coverage.py`` measures how often both are wrong.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from isorun_matrix.measurement.statistics.latencies import RankInterval, rank_interval

Medians = Mapping[int, float]
"""The median of a cell in each round, by the number of the round."""

NEEDED = 5
"""The minimum number of common rounds for a verdict: all five in one direction happen by chance once in 16 times."""

ENOUGH = 4
"""The minimum number of rounds in each of two runs: with three, no split of six is rarer than one in 20."""

_ALPHA = 0.05
_SMALL = 0.02  # a smaller difference is never a verdict
_TIED = 0.05  # cells are tied if the whole interval of their ratio is within this
_PERMUTATIONS = 4000


@dataclass(frozen=True)
class Ratio:
    """The time of a cell divided by that of another, in common rounds.

    Attributes:
        ratio: the median of the rounds.
        interval: of that median.
        rounds: how many they have in common.
        verdict: ``slower``; ``tied``, if the interval is within 5 % of 1; ``ambiguous`` if neither is shown; ``None``
            with fewer than five rounds.
        needed: the smallest ratio that chance and noise do not explain; ``None`` with fewer than five rounds.
    """

    ratio: float
    interval: RankInterval
    rounds: int
    verdict: str | None
    needed: float | None


def log_ratios(cell: Medians, other: Medians) -> np.ndarray:
    """The logarithm of the ratio in each common round."""
    return np.array([math.log(cell[number] / other[number]) for number in cell if number in other])


def noise(cells: Sequence[Medians]) -> float:
    """The standard deviation of the logarithm of a process's median that rounds and cells do not explain.

    The median over all pairs of cells, so that one unsteady cell does not count.
    """
    spreads = [
        float(np.var(ratios, ddof=1)) / 2
        for cell, other in itertools.combinations(cells, 2)
        if len(ratios := log_ratios(cell, other)) >= 3
    ]
    return math.sqrt(float(np.median(spreads))) if spreads else 0.0


def against(fastest: Medians, other: Medians, cells: Sequence[Medians], floor: float) -> Ratio | None:
    """Compare a cell with the fastest of its workload.

    It is ``slower`` if (1) the interval of the ratio is above 1; (2) the ratio exceeds what chance makes of the largest
    of all pairs: the quantile of a normal distribution at 5 % divided by the number of pairs, times the standard error,
    which is the larger of that of this pair and that of the workload's noise; (3) it exceeds ``floor`` and 2 %.

    Args:
        fastest, other: what is compared.
        cells: all cells of the workload, a control included.
        floor: the ratio, less 1, that a cell has to itself.

    Returns:
        The comparison; ``None`` with fewer than two common rounds.
    """
    ratios = log_ratios(other, fastest)
    interval = rank_interval(ratios)
    if interval is None:
        return None
    middle = float(np.median(ratios))
    verdict = needed = None
    if len(ratios) >= NEEDED:
        own = float(np.std(ratios, ddof=1)) / math.sqrt(2)
        error = max(own, noise(cells)) * math.sqrt(2 / len(ratios))
        quantile = NormalDist().inv_cdf(1 - _ALPHA / 2 / math.comb(max(2, len(cells)), 2))
        threshold = max(quantile * error, math.log1p(max(floor, _SMALL)))
        needed = math.exp(threshold)
        if interval.low > 0 and middle > threshold:
            verdict = "slower"
        elif max(abs(interval.low), abs(interval.high)) <= math.log1p(_TIED):
            verdict = "tied"
        else:
            verdict = "ambiguous"
    ends = RankInterval(math.exp(interval.low), math.exp(interval.high), interval.level)
    return Ratio(math.exp(middle), ends, len(ratios), verdict, needed)


def self_ratio(cell: Medians, control: Medians) -> float | None:
    """How far a cell is from its control, as a ratio less 1: the noise floor; ``None`` without a common round."""
    ratios = log_ratios(cell, control)
    return math.expm1(abs(float(np.median(ratios)))) if len(ratios) else None


def permutation_test(first: Sequence[Medians], other: Sequence[Medians]) -> list[float]:
    """For each cell, the probability that chance separates two runs as far, corrected for the number of cells.

    The step-down max-T procedure of Westfall and Young ("Resampling-Based Multiple Testing", 1993): rounds are assigned
    to the two runs in every possible way (or in 4,000 random ways), all cells together, and each cell's t statistic of
    the logarithms is compared with the largest of all cells.

    Args:
        first, other: the medians of each cell in each run, in the same order.

    Returns:
        The adjusted probabilities, at most 1; 1 where a run has fewer than two rounds.
    """
    usable = [index for index, pair in enumerate(zip(first, other, strict=True)) if min(map(len, pair)) >= 2]
    adjusted = [1.0] * len(first)
    if not usable:
        return adjusted
    runs = [[np.log([*run[index].values()]) for index in usable] for run in (first, other)]
    rounds = [max(map(len, run)) for run in runs]
    table = np.full((len(usable), sum(rounds)), np.nan)
    for start, run in ((0, runs[0]), (rounds[0], runs[1])):
        for row, values in enumerate(run):
            table[row, start : start + len(values)] = values
    splits = _splits(*rounds)
    observed = _t(table, splits[:1])[:, 0]
    order = np.argsort(-observed)
    largest = np.maximum.accumulate(_t(table[order[::-1]], splits), axis=0)[::-1]
    chances = np.maximum.accumulate((largest >= observed[order][:, None] - 1e-9).mean(axis=1))
    for place, chance in zip(order, chances, strict=True):
        adjusted[usable[int(place)]] = float(chance)
    return adjusted


def differ(ratio: float, chance: float, *noises: float) -> bool:
    """Whether a cell differs between two runs.

    Args:
        ratio: of its medians.
        chance: what :func:`permutation_test` gives.
        noises: the noise floor of each run, as a ratio less 1.
    """
    floor = 1 + max(_SMALL, *noises)
    return chance <= _ALPHA and not 1 / floor < ratio < floor


def _splits(first: int, other: int) -> np.ndarray:
    """(splits, rounds), bool: which rounds are in the first run; the true split is the first."""
    total = first + other
    if math.comb(total, first) <= _PERMUTATIONS:
        chosen = np.array(list(itertools.combinations(range(total), first)))
    else:
        rng = np.random.default_rng(0)
        drawn = rng.permuted(np.tile(np.arange(total), (_PERMUTATIONS - 1, 1)), axis=1)[:, :first]
        chosen = np.vstack([np.arange(first), drawn])
    splits = np.zeros((len(chosen), total), dtype=bool)
    np.put_along_axis(splits, chosen, values=True, axis=1)
    return splits


def _t(table: np.ndarray, splits: np.ndarray) -> np.ndarray:
    """The absolute t statistics of two samples with one variance: (cells, splits). Missing values are left out."""
    known = ~np.isnan(table)
    values = np.where(known, table, 0.0)
    sums, squares, counts = [], [], []
    for chosen in (splits, ~splits):
        weights = chosen.T.astype(np.float64)
        counts.append(known.astype(np.float64) @ weights)
        sums.append(values @ weights)
        squares.append(values**2 @ weights)
    with np.errstate(divide="ignore", invalid="ignore"):
        means = [total / count for total, count in zip(sums, counts, strict=True)]
        within = sum(square - total * mean for square, total, mean in zip(squares, sums, means, strict=True))
        error = np.sqrt(np.maximum(within, 1e-12) / (counts[0] + counts[1] - 2) * (1 / counts[0] + 1 / counts[1]))
        ratios = np.abs(means[0] - means[1]) / error
    return np.where(np.isfinite(ratios), ratios, 0.0)
