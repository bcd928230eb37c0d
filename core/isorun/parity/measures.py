"""How far outputs are from a reference's.

All in float64, over the elements *a* of the output and *b* of the reference that are compared
    ``max_abs``  max |a - b|
    ``max_rel``  max |a - b| / max(|b|, rms(b)). The floor, the reference's own root mean square, keeps elements
                 near zero from turning rounding into large ratios.
    ``rms``      rms(a - b) / rms(b), the relative error in the Euclidean norm.
    ``cosine``   the least cosine over rows. A row is a vector along the last dimension; of a token-level output
                 of rank 2 (one number a token) it is the sequence. Rows whose norm in the reference is below a
                 thousandth of the root mean square norm have no direction that rounding would leave alone: they
                 count in the other measures alone.
    ``argmax``   the share of those rows whose greatest element is at the reference's place.

Where the reference is zero throughout, the ratios are absolute errors. Each ratio is 1 for an output of zeros and the
cosine 0, whatever the scale of the model: limits below 1 cannot accept one.
"""

from __future__ import annotations

import numpy as np

_FAINT = 1e-3


def errors(a: np.ndarray, b: np.ndarray) -> tuple[float, float, float]:
    """``max_abs``, ``max_rel`` and ``rms`` of the elements that are compared."""
    difference = np.abs(a - b)
    size = _root_mean_square(b)
    floor = size if size > 0 else 1.0
    max_rel = np.max(difference / np.maximum(np.abs(b), floor))
    return float(difference.max()), float(max_rel), _root_mean_square(difference) / floor


def directions(a: np.ndarray, b: np.ndarray, valid: np.ndarray) -> tuple[float | None, float | None, int]:
    """The least cosine over rows, the share of rows that agree on their greatest element, and how many they are.

    Args:
        a, b: (rows, columns).
        valid: the same, which elements are compared.
    """
    scale = float(np.max(np.abs(b[valid])))
    if scale == 0:
        return None, None, 0
    b = np.where(valid, b, 0.0) / scale
    a = np.where(valid, a, 0.0)
    norms = np.sqrt(np.sum(np.square(b), axis=1))
    counted = norms > _FAINT * np.sqrt(np.mean(np.square(norms)))
    a, b, norms, valid = a[counted], b[counted], norms[counted], valid[counted]
    sizes = np.max(np.abs(a), axis=1, keepdims=True)
    a = a / np.where(sizes > 0, sizes, 1.0)
    lengths = np.sqrt(np.sum(np.square(a), axis=1))
    cosines = np.sum(a * b, axis=1) / np.where(lengths > 0, lengths * norms, 1.0)
    lowest = -np.inf
    same = np.argmax(np.where(valid, a, lowest), axis=1) == np.argmax(np.where(valid, b, lowest), axis=1)
    return float(min(1.0, cosines.min())), float(same.mean()), same.size


def _root_mean_square(values: np.ndarray) -> float:
    """Scaled by the greatest value first, so that no square overflows or vanishes."""
    greatest = float(np.max(np.abs(values)))
    return greatest * float(np.sqrt(np.mean(np.square(values / greatest)))) if greatest > 0 else 0.0
