"""The limits that outputs must keep to be right."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Tolerance:
    """The limits that outputs must keep; the measures are those of :mod:`isorun.parity.measures`.

    Attributes:
        max_rel: the most that one element may be off, in units of the reference's size; ``None`` for no such limit.
        rms: the most that the whole may be off, in the same units.
        cosine: the least cosine of any row.
        max_abs: the most that one element may be off, absolutely; ``None`` for no such limit.
        argmax: the least share of rows that agree on their greatest element; ``None`` for no such limit. Below 1,
            one row may differ beyond that share: two elements that are nearly equal decide nothing.
    """

    max_rel: float | None
    rms: float
    cosine: float
    max_abs: float | None = None
    argmax: float | None = None

    def __post_init__(self) -> None:
        max_rel = self.max_rel or 0.0
        if not (0 <= max_rel < 1 and 0 <= self.rms < 1 and 0 < self.cosine <= 1):
            raise ValueError(
                f"{self}: max_rel and rms must be at least 0 and below 1, cosine above 0 and at most 1; "
                "anything wider would accept an output of zeros"
            )

    def broken(self, rows: int, argmax: float | None, **measures: float | None) -> Iterator[str]:
        """What measures break these limits, in words.

        Args:
            rows: how many rows ``argmax`` is a share of.
            argmax: that share; ``None`` where there is none.
            measures: the others by name; ``None`` where there is none.
        """
        for name, value in measures.items():
            limit = getattr(self, name)
            if value is None or limit is None:
                continue
            if name == "cosine" and value < limit:
                yield f"{name} is {value:.10g}, below {limit:.10g}"
            elif name != "cosine" and value > limit:
                yield f"{name} is {value:.3g}, above {limit:.3g}"
        if argmax is not None and self.argmax is not None and not _agree(argmax, self.argmax, rows):
            yield f"argmax is {argmax:.10g}, below {self.argmax:.10g}"


DEFAULT_TOLERANCES: Mapping[str, Tolerance] = {
    "fp64": Tolerance(max_rel=1e-6, rms=1e-7, cosine=1 - 1e-12, argmax=0.999),
    "fp32": Tolerance(max_rel=2e-4, rms=2e-5, cosine=1 - 1e-8, argmax=0.99),
    "fp16": Tolerance(max_rel=0.04, rms=0.01, cosine=1 - 5e-5, argmax=0.95),
    "bf16": Tolerance(max_rel=0.3, rms=0.05, cosine=0.998, argmax=0.85),
    "int8": Tolerance(max_rel=0.9, rms=0.15, cosine=0.98, argmax=0.6),
}
"""The limits of each precision unless a caller sets its own. docs/matrix.md says where they come from.

``max_rel`` is the greatest absolute error in units of the output's size: a limit on ``max_abs`` itself would be
right for one model and wrong for another.
"""


def _agree(share: float, limit: float, rows: int) -> bool:
    """Whether enough rows agree on their greatest element."""
    differing, allowed = round((1 - share) * rows), (1 - limit) * rows
    return differing <= (allowed + 1 if limit < 1 else 0)
