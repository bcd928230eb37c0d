"""Whether outputs are right: measures of how far they are from a reference's, and limits for each.

What is compared
    An output whose first two dimensions are those of the attention mask (*token level*) is compared where the
    mask is 1; what a runtime leaves at padding is its own affair. Any other output is compared whole, but for
    the rows of a batch that hold no real token: nothing is right or wrong there.
    A NaN or an infinity fails wherever it is, padding included: a mean over masked tokens would spread it.

Measures, all in float64, over the elements *a* of the output and *b* of the reference that are compared
    ``max_abs``  max |a - b|
    ``max_rel``  max |a - b| / max(|b|, rms(b)). The floor, the reference's own root mean square, keeps elements
                 near zero from turning rounding into large ratios.
    ``rms``      rms(a - b) / rms(b), the relative error in the Euclidean norm.
    ``cosine``   the least cosine over rows. A row is a vector along the last dimension; of a token-level output
                 of rank 2 (one number a token) it is the sequence. Rows whose norm in the reference is below a
                 thousandth of the root mean square norm have no direction that rounding would leave alone: they
                 count in the other measures alone.
    ``argmax``   the share of those rows whose greatest element is at the reference's place.

Where the reference is zero throughout, the ratios are absolute errors. Integers, booleans and strings must be
equal. Each ratio is 1 for an output of zeros and the cosine 0, whatever the scale of the model: limits below 1
cannot accept one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from isorun.types import TensorSpec

_FAINT = 1e-3


@dataclass(frozen=True)
class Tolerance:
    """The limits that outputs must keep; the measures are those of this module.

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


@dataclass(frozen=True)
class OutputParity:
    """One output beside its reference.

    Attributes:
        name: the output's name.
        level: ``"token"``, ``"sequence"`` or, where there is no mask, ``"all"``: what was compared.
        elements: how many elements were compared.
        nonfinite: how many elements are NaN or infinite, padding included.
        max_abs, max_rel, rms, cosine, argmax: the measures; ``None`` where they do not exist (shapes differ, a
            value is not finite, nothing to compare, or not a number).
        reasons: what fails, empty where nothing does.
    """

    name: str
    level: str
    elements: int
    nonfinite: int
    max_abs: float | None
    max_rel: float | None
    rms: float | None
    cosine: float | None
    argmax: float | None
    reasons: tuple[str, ...]


@dataclass(frozen=True)
class Parity:
    """All outputs beside their references, and the verdict."""

    outputs: tuple[OutputParity, ...]

    @property
    def verdict(self) -> str:
        """``"pass"`` or ``"fail"``."""
        return "fail" if self.reasons else "pass"

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why it fails, each reason with the output's name; empty where it passes."""
        found = tuple(f"{output.name}: {reason}" for output in self.outputs for reason in output.reasons)
        compared = sum(output.elements for output in self.outputs)
        return found or (() if compared else ("nothing was compared: no output has an element at a real token",))

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON: the verdict, the worst of every measure over the outputs, and each output."""
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
        reference: the same names. Its floating-point arrays may be wider than the output's.
        mask: (batch, sequence), not 0 at real tokens; ``None`` for a model without padding.
        tolerance: the limits.
        token_level: the outputs that have a vector or a number for each token (:func:`token_level_outputs`);
            ``None`` to tell by shape: those whose first two dimensions are the mask's.
    """
    names = [*reference, *(name for name in outputs if name not in reference)]
    real = None if mask is None else np.asarray(mask) != 0
    return Parity(
        tuple(
            _compare_one(name, outputs.get(name), reference.get(name), real, tolerance, token_level) for name in names
        )
    )


def token_level_outputs(inputs: Iterable[TensorSpec], outputs: Iterable[TensorSpec]) -> frozenset[str] | None:
    """The outputs whose first two dimensions are, by name or number, those of ``attention_mask``.

    Shapes alone can deceive: a pooled output of (batch, 128) is no token-level one at a sequence of 128.

    Returns:
        Their names; ``None`` where the model names none of these dimensions.
    """
    masks = [spec for spec in inputs if spec.name == "attention_mask" and spec.shape and len(spec.shape) == 2]
    if not masks or masks[0].shape is None or None in masks[0].shape:
        return None
    specs = list(outputs)
    if any(spec.shape is None or None in spec.shape[:2] for spec in specs):
        return None
    return frozenset(spec.name for spec in specs if spec.shape and tuple(spec.shape[:2]) == tuple(masks[0].shape))


def _compare_one(
    name: str,
    output: Any,
    reference: Any,
    real: np.ndarray | None,
    tolerance: Tolerance,
    token_level: Collection[str] | None,
) -> OutputParity:
    def unlike(*reasons: str, level: str = "all", nonfinite: int = 0) -> OutputParity:
        return OutputParity(name, level, 0, nonfinite, None, None, None, None, None, reasons)

    if output is None or reference is None:
        return unlike("there is no such output" if output is None else "the reference has no such output")
    if not (isinstance(output, np.ndarray) and isinstance(reference, np.ndarray)):
        return unlike(f"only tensors can be compared; this is a {type(output).__name__}")
    if output.shape != reference.shape:
        return unlike(f"its shape is {list(output.shape)}; the reference's is {list(reference.shape)}")
    if not _same_type(output.dtype, reference.dtype):
        return unlike(f"its dtype is {output.dtype}; the reference's is {reference.dtype}")

    level = _level(name, output.shape, real, token_level)
    if output.dtype.kind not in "fV":  # V: the extension types of ml_dtypes, such as bfloat16
        a, b = _compared(output, level, real), _compared(reference, level, real)
        wrong = int(np.count_nonzero(a != b))
        reasons = tuple([f"{wrong} of {a.size} values differ"] if wrong else [])
        return OutputParity(name, level, a.size, 0, None, None, None, None, None, reasons)

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
    max_abs, max_rel, rms = _errors(a[valid], b[valid])
    cosine, argmax, rows = _directions(a, b, valid)
    broken = [*_broken(tolerance, max_abs=max_abs, max_rel=max_rel, rms=rms, cosine=cosine)]
    if argmax is not None and tolerance.argmax is not None and not _agree(argmax, tolerance.argmax, rows):
        broken.append(f"argmax is {argmax:.10g}, below {tolerance.argmax:.10g}")
    return OutputParity(name, level, int(valid.sum()), 0, max_abs, max_rel, rms, cosine, argmax, tuple(broken))


def _broken(tolerance: Tolerance, **measures: float | None) -> Iterator[str]:
    for name, value in measures.items():
        limit = getattr(tolerance, name)
        if value is None or limit is None:
            continue
        if name == "cosine" and value < limit:
            yield f"{name} is {value:.10g}, below {limit:.10g}"
        elif name != "cosine" and value > limit:
            yield f"{name} is {value:.3g}, above {limit:.3g}"


def _agree(share: float, limit: float, rows: int) -> bool:
    """Whether enough rows agree on their greatest element."""
    differing, allowed = round((1 - share) * rows), (1 - limit) * rows
    return differing <= (allowed + 1 if limit < 1 else 0)


def _same_type(output: np.dtype[Any], reference: np.dtype[Any]) -> bool:
    both_floats = output.kind == reference.kind == "f"
    return output == reference or (both_floats and reference.itemsize > output.itemsize)


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
    columns = a.shape[-1] if a.ndim > 1 else a.size
    rows = a.size // columns if columns else 0
    a, b = a.reshape(rows, columns), b.reshape(rows, columns)
    return a, b, np.ones(a.shape, dtype=bool)


def _errors(a: np.ndarray, b: np.ndarray) -> tuple[float, float, float]:
    difference = np.abs(a - b)
    size = _root_mean_square(b)
    floor = size if size > 0 else 1.0
    max_rel = np.max(difference / np.maximum(np.abs(b), floor))
    return float(difference.max()), float(max_rel), _root_mean_square(difference) / floor


def _root_mean_square(values: np.ndarray) -> float:
    """Scaled by the greatest value first, so that no square overflows or vanishes."""
    greatest = float(np.max(np.abs(values)))
    return greatest * float(np.sqrt(np.mean(np.square(values / greatest)))) if greatest > 0 else 0.0


def _directions(a: np.ndarray, b: np.ndarray, valid: np.ndarray) -> tuple[float | None, float | None, int]:
    """The least cosine over rows, the share of rows that agree on their greatest element, and how many they are."""
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


def _worst(outputs: Sequence[OutputParity], measure: str, worst: Any) -> float | None:
    """``None`` where an output that fails could not be measured: the others' figures would speak for it."""
    if any(output.reasons and not output.elements for output in outputs):
        return None
    values = [getattr(output, measure) for output in outputs]
    return worst((value for value in values if value is not None), default=None)  # type: ignore[no-any-return]
