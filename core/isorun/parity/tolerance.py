"""Limits on the error measures."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from isorun.errors import InvalidArgument


@dataclass(frozen=True)
class Tolerance:
    """Limits on the measures of :mod:`isorun.parity.measures`.

    Attributes:
        max_rel: the maximum relative error of an element; ``None`` for no limit.
        rms: the maximum relative error of the output as a whole.
        cosine: the minimum cosine of any row.
        max_abs: the maximum absolute error of an element; ``None`` for no limit.
        argmax: the minimum fraction of rows with equal argmax; ``None`` for no limit. Below 1, one more row may differ.
    """

    max_rel: float | None
    rms: float
    cosine: float
    max_abs: float | None = None
    argmax: float | None = None

    def __post_init__(self) -> None:
        max_rel = self.max_rel or 0.0
        if not (0 <= max_rel < 1 and 0 <= self.rms < 1 and 0 < self.cosine <= 1):
            raise InvalidArgument(
                f"{self}: max_rel and rms must be at least 0 and below 1, cosine above 0 and at most 1; "
                "wider limits would accept an output of zeros"
            )

    def rounded(self, epsilon: float) -> Tolerance:
        """The limits for an output that is stored in fewer bits than it is computed in.

        Args:
            epsilon: of its type, relative: what the roundings of two equal values differ by at most. It adds to the
                limits as independent errors do: the squares of ``max_rel``, ``rms`` and of the angle, 2 (1 - cosine).
        """
        return replace(
            self,
            max_rel=None if self.max_rel is None else math.hypot(self.max_rel, epsilon),
            rms=math.hypot(self.rms, epsilon),
            cosine=self.cosine * (1 - epsilon**2 / 2),
        )

    def broken(self, rows: int, argmax: float | None, **measures: float | None) -> Iterator[str]:
        """Describe the limits that measures exceed.

        Args:
            rows: the number of rows for ``argmax``.
            argmax: the fraction of rows with equal argmax; ``None`` if undefined.
            measures: the other measures by name; ``None`` if undefined.
        """
        for name, value in measures.items():
            limit = getattr(self, name)
            if value is None or limit is None:
                continue
            if name == "cosine" and value < limit:
                yield f"{name} is {_near_one(value)}, below {limit:.10g}"
            elif name != "cosine" and value > limit:
                yield f"{name} is {value:.3g}, above {limit:.3g}"
        if argmax is not None and self.argmax is not None and not _agree(argmax, self.argmax, rows):
            yield f"argmax is {argmax:.4g}, below {self.argmax:.4g}"


DEFAULT_TOLERANCES: Mapping[str, Tolerance] = {
    "fp64": Tolerance(max_rel=1e-6, rms=1e-7, cosine=1 - 1e-12, argmax=0.999),
    "fp32": Tolerance(max_rel=2e-4, rms=2e-5, cosine=1 - 1e-8, argmax=0.99),
    "tf32": Tolerance(max_rel=0.04, rms=0.01, cosine=1 - 5e-5, argmax=0.95),  # the mantissa of fp16
    "fp16": Tolerance(max_rel=0.04, rms=0.01, cosine=1 - 5e-5, argmax=0.95),
    "bf16": Tolerance(max_rel=0.3, rms=0.05, cosine=0.998, argmax=0.85),
    "int8": Tolerance(max_rel=0.9, rms=0.15, cosine=0.98, argmax=0.6),
}
"""The default limits of each precision; docs/matrix-measurement.md explains their derivation.

``max_rel`` is relative to the size of the output; a limit on ``max_abs`` would depend on the model.
"""


def _near_one(value: float) -> str:
    """A number with three digits of its distance from 1."""
    return f"{value:.{2 - math.floor(math.log10(abs(1 - value)))}f}"


def _agree(share: float, limit: float, rows: int) -> bool:
    """Whether enough rows have equal argmax."""
    differing, allowed = round((1 - share) * rows), (1 - limit) * rows
    return differing <= (allowed + 1 if limit < 1 else 0)
