"""Comparison of outputs with a reference: error measures, and limits for each.

What is compared
    A *token-level* output, with a value for each token, is compared where the mask is not 0; values at padding are
    unspecified. Any other output is compared as a whole, except for fully masked rows, whose values are unspecified.
    A NaN or an infinity fails anywhere, padding included: a mean over masked tokens would propagate it.
    An output of 16 bits or fewer may differ by the rounding of its own type as well.

The measures are in :mod:`isorun.parity.measures`, the limits in :mod:`isorun.parity.tolerance`. Integers, booleans and
strings must be equal.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from isorun.parity.measures import directions, errors
from isorun.parity.tolerance import DEFAULT_TOLERANCES, Tolerance

__all__ = ["DEFAULT_TOLERANCES", "OutputParity", "Parity", "Tolerance", "compare"]


@dataclass(frozen=True)
class OutputParity:
    """The comparison of one output.

    Attributes:
        name: the output's name.
        level: what was compared: ``"token"``, ``"sequence"`` or, without a mask, ``"all"``.
        elements: the number of elements compared.
        nonfinite: the number of elements that are NaN or infinite, padding included.
        max_abs, max_rel, rms, cosine, argmax: the measures; ``None`` if undefined (shapes differ, a value is not
            finite, there is nothing to compare, or not floating point).
        reasons: why it fails; empty if it passes.
    """

    name: str
    level: str
    elements: int
    nonfinite: int = 0
    max_abs: float | None = None
    max_rel: float | None = None
    rms: float | None = None
    cosine: float | None = None
    argmax: float | None = None
    reasons: tuple[str, ...] = ()


@dataclass(frozen=True)
class Parity:
    """The comparison of all outputs, and the verdict."""

    outputs: tuple[OutputParity, ...]

    @property
    def verdict(self) -> str:
        """``"pass"`` or ``"fail"``."""
        return "fail" if self.reasons else "pass"

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why it fails, each reason with the output's name; empty if it passes."""
        reasons = tuple(f"{output.name}: {reason}" for output in self.outputs for reason in output.reasons)
        compared = sum(output.elements for output in self.outputs)
        return reasons or (() if compared else ("nothing was compared: no output has an element at a real token",))

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON: the verdict, the worst value of each measure, and each output."""
        return {
            "verdict": self.verdict,
            "reasons": list(self.reasons),
            "max_abs": _worst(self.outputs, "max_abs", max),
            "max_rel": _worst(self.outputs, "max_rel", max),
            "rms": _worst(self.outputs, "rms", max),
            "cosine": _worst(self.outputs, "cosine", min),
            "argmax": _worst(self.outputs, "argmax", min),
            "outputs": [{**asdict(output), "reasons": list(output.reasons)} for output in self.outputs],
        }


def compare(
    outputs: Mapping[str, Any],
    reference: Mapping[str, Any],
    mask: np.ndarray | None,
    tolerance: Tolerance,
    *,
    token_level: Collection[str] | None = None,
) -> Parity:
    """Compare a model's outputs with a reference's.

    Args:
        outputs: output name to array.
        reference: output name to array; floating-point arrays may have a wider type than the output.
        mask: (batch, sequence), nonzero at real tokens: :meth:`ModelInfo.attended` of the feeds; ``None`` to compare
            outputs as a whole.
        tolerance: the limits, to which the rounding of an output's own type is added.
        token_level: the token-level outputs, ``ModelInfo.token_outputs``; ``None`` for outputs whose first two
            dimensions are the mask's.
    """
    names = [*reference, *(name for name in outputs if name not in reference)]
    real = None if mask is None else np.asarray(mask) != 0
    return Parity(
        tuple(
            _compare_one(name, outputs.get(name), reference.get(name), real, tolerance, token_level) for name in names
        )
    )


def _compare_one(
    name: str,
    output: Any,
    reference: Any,
    real: np.ndarray | None,
    tolerance: Tolerance,
    token_level: Collection[str] | None,
) -> OutputParity:
    def unlike(*reasons: str, level: str = "all", nonfinite: int = 0) -> OutputParity:
        return OutputParity(name, level, 0, nonfinite, reasons=reasons)

    if output is None or reference is None:
        return unlike("there is no such output" if output is None else "the reference has no such output")
    if not (isinstance(output, np.ndarray) and isinstance(reference, np.ndarray)):
        return unlike(f"only tensors can be compared; this is a {type(output).__name__}")
    if output.shape != reference.shape:
        return unlike(f"its shape is {list(output.shape)}; the reference's is {list(reference.shape)}")
    if not _same_type(output.dtype, reference.dtype):
        return unlike(f"its dtype is {output.dtype}; the reference's is {reference.dtype}")

    level = _level(name, output.shape, real, token_level)
    if not _is_float(output.dtype):
        a, b = _compared(output, level, real), _compared(reference, level, real)
        wrong = int(np.count_nonzero(a != b))
        reasons = tuple([f"{wrong} of {a.size} values differ"] if wrong else [])
        return OutputParity(name, level, a.size, reasons=reasons)

    with np.errstate(invalid="ignore"):  # freed memory may hold signaling NaNs: counted below, not warned of here
        ours, theirs = output.astype(np.float64), reference.astype(np.float64)
    if not np.isfinite(theirs).all():
        return unlike("the reference itself holds a NaN or an infinity", level=level)
    if nonfinite := int(np.count_nonzero(~np.isfinite(ours))):
        first = ", ".join(map(str, np.argwhere(~np.isfinite(ours))[0]))
        return unlike(
            f"{nonfinite} of {ours.size} values are NaN or infinite, the first at [{first}]",
            level=level,
            nonfinite=nonfinite,
        )
    a, b, valid = _rows(ours, theirs, level, real)
    if not valid.any():
        return unlike(level=level)
    if output.dtype.itemsize < 4:
        tolerance = tolerance.rounded(_epsilon(output.dtype))
    max_abs, max_rel, rms = errors(a[valid], b[valid])
    cosine, argmax, rows = directions(a, b, valid, tolerance.rms)
    broken = tolerance.broken(rows, argmax, max_abs=max_abs, max_rel=max_rel, rms=rms, cosine=cosine)
    return OutputParity(name, level, int(valid.sum()), 0, max_abs, max_rel, rms, cosine, argmax, tuple(broken))


def _same_type(output: np.dtype[Any], reference: np.dtype[Any]) -> bool:
    both_floats = _is_float(output) and _is_float(reference)
    return output == reference or (both_floats and reference.itemsize > output.itemsize)


def _is_float(dtype: np.dtype[Any]) -> bool:
    return "float" in dtype.name  # NumPy does not count the types of ml_dtypes, such as bfloat16, among its own


def _epsilon(dtype: np.dtype[Any]) -> float:
    if dtype.kind == "f":
        return float(np.finfo(dtype).eps)
    import ml_dtypes

    return float(ml_dtypes.finfo(dtype).eps)  # type: ignore[no-untyped-call]


def _level(name: str, shape: Sequence[int], real: np.ndarray | None, token_level: Collection[str] | None) -> str:
    if real is None:
        return "all"
    fits = tuple(shape[:2]) == real.shape
    if fits and (token_level is None or name in token_level):
        return "token"
    return "sequence" if tuple(shape[:1]) == real.shape[:1] else "all"


def _compared(array: np.ndarray, level: str, real: np.ndarray | None) -> np.ndarray:
    """The part of an output that is compared: (real tokens, ...), (rows with a real token, ...), or all of it."""
    if real is None or level == "all":
        return array
    return array[real if level == "token" else real.any(axis=1)]


def _rows(
    ours: np.ndarray, theirs: np.ndarray, level: str, real: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Both arrays as (rows, columns), and which of their elements are compared."""
    if level == "token" and real is not None and ours.ndim == 2:
        return ours, theirs, real
    a, b = _compared(ours, level, real), _compared(theirs, level, real)
    # A single column, such as the scores of pairs, is one row: the direction of a number is only its sign.
    columns = a.shape[-1] if a.ndim > 1 and a.shape[-1] > 1 else a.size
    rows = a.size // columns if columns else 0
    a, b = a.reshape(rows, columns), b.reshape(rows, columns)
    return a, b, np.ones(a.shape, dtype=bool)


def _worst(outputs: Sequence[OutputParity], measure: str, worst: Any) -> float | None:
    """The worst value of a measure; ``None`` if an output failed without being measured."""
    if any(output.reasons and not output.elements for output in outputs):
        return None
    values = [getattr(output, measure) for output in outputs]
    return worst((value for value in values if value is not None), default=None)  # type: ignore[no-any-return]
