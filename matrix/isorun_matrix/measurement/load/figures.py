"""What load shows: single measurements, and a cell in a scenario."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

PERCENTILES = (50, 90, 99)
SLOTS = 5
"""How many measurements have other scenarios than ``server``. By chance, all of one cell's are above all of an equal
cell's in 1 of 126 pairs; of three measurements, in 1 of 10."""


@dataclass(frozen=True)
class Trial:
    """One measurement under load.

    Attributes:
        rate: scheduled requests per second; ``None`` in other scenarios than ``server``.
        requests: how many were answered.
        requests_per_s: answered.
        p50_ms, p90_ms, p99_ms: latencies; ``None`` in ``offline``.
        disturbed: whether other programs used 5 % of the time of the cores or more.
    """

    rate: float | None
    requests: int
    requests_per_s: float
    p50_ms: float | None
    p90_ms: float | None
    p99_ms: float | None
    disturbed: bool = False


@dataclass(frozen=True)
class LoadFigures:
    """A cell in a scenario.

    Attributes:
        requests_per_s: for ``server``, the highest rate within the bound; 0 if no rate is.
        rows_per_s: rows in the answered requests.
        result: the measurement that it is from, or the nearest one within the bound; ``None`` if no rate is within it.
        trials: all measurements, in order.
        generator: what issued the requests, with its version.
        between: how sure the rate is: for ``server``, an interval; else, the lowest and highest of five rates.
    """

    requests_per_s: float
    rows_per_s: float
    result: Trial | None
    trials: Sequence[Trial]
    generator: str
    between: tuple[float, float] | None = None
