"""Error measures, in float64, over the compared elements *a* of the output and *b* of the reference

    ``max_abs``  max |a - b|
    ``max_rel``  max |a - b| / max(|b|, rms(b)). The floor, the reference's root mean square, prevents large ratios
                 from rounding of elements near zero.
    ``rms``      rms(a - b) / rms(b), the relative error in the Euclidean norm.
    ``cosine``   the minimum cosine over rows. A row is a vector along the last dimension; for a token-level output
                 of rank 2 (one number per token) it is the sequence; an output with one column is a single row. Rows
                 whose norm in the reference is below a thousandth of the root mean square norm are skipped: rounding
                 dominates their direction.
    ``argmax``   the fraction of those rows whose maximum is at the reference's index, or where the reference is lower
                 than its maximum by at most the ``rms`` error that is allowed: such elements may trade places.

If the reference is all zeros, the ratios are absolute errors. For an output of zeros each ratio is 1 and the cosine 0,
independent of the model's scale, so that limits below 1 reject it.
"""

from __future__ import annotations

import numpy as np

_FAINT = 1e-3


def errors(a: np.ndarray, b: np.ndarray) -> tuple[float, float, float]:
    """``max_abs``, ``max_rel`` and ``rms`` of the compared elements."""
    difference = np.abs(a - b)
    size = _root_mean_square(b)
    floor = size if size > 0 else 1.0
    max_rel = np.max(difference / np.maximum(np.abs(b), floor))
    return float(difference.max()), float(max_rel), _root_mean_square(difference) / floor


def directions(a: np.ndarray, b: np.ndarray, valid: np.ndarray, rms: float) -> tuple[float | None, float | None, int]:
    """The minimum cosine over rows, the fraction of rows with equal argmax, and the number of rows.

    Args:
        a, b: (rows, columns).
        valid: (rows, columns), whether an element is compared.
        rms: the relative error that is allowed: elements of the reference that are closer are equal.
    """
    scale = float(np.max(np.abs(b[valid])))
    if scale == 0:
        return None, None, 0
    equal = rms * _root_mean_square(b[valid]) / scale
    b = np.where(valid, b, 0.0) / scale
    a = np.where(valid, a, 0.0)
    norms = np.sqrt(np.sum(np.square(b), axis=1))
    counted = norms > _FAINT * np.sqrt(np.mean(np.square(norms)))
    a, b, norms, valid = a[counted], b[counted], norms[counted], valid[counted]
    sizes = np.max(np.abs(a), axis=1, keepdims=True)
    a = a / np.where(sizes > 0, sizes, 1.0)
    lengths = np.sqrt(np.sum(np.square(a), axis=1))
    cosines = np.sum(a * b, axis=1) / np.where(lengths > 0, lengths * norms, 1.0)
    places = np.argmax(np.where(valid, a, -np.inf), axis=1)
    b = np.where(valid, b, -np.inf)
    same = b.max(axis=1) - np.take_along_axis(b, places[:, None], axis=1)[:, 0] <= equal
    return float(min(1.0, cosines.min())), float(same.mean()), same.size


def _root_mean_square(values: np.ndarray) -> float:
    """Computed on values scaled to a maximum of 1, so that no square overflows or underflows."""
    greatest = float(np.max(np.abs(values)))
    return greatest * float(np.sqrt(np.mean(np.square(values / greatest)))) if greatest > 0 else 0.0
