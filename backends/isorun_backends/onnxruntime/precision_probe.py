"""Measure what a provider computes matrix products in: most do not report it, and some choose for themselves.

``precision_probe.onnx`` holds ``y = x @ w`` with a constant ``w`` (``tests/fixtures/make_precision_probe.py``), and
``precision_probe_fp16.onnx`` the same product in fp16, for a runtime that computes in the types of the graph. The error
of the result shows the mantissa: 24 bits in fp32, 11 in fp16 and TF32, 8 in bf16. A second run on numbers above
65504, the maximum of fp16, tells fp16 from TF32.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from isorun.plugin import BackendFailed, BackendUnavailable, import_runtime, runtime_errors
from isorun_backends.onnxruntime.session import RECORD_ASSIGNMENT, SILENT, title

if TYPE_CHECKING:
    import onnxruntime

MODEL = Path(__file__).with_suffix(".onnx")
TYPED = {precision: MODEL.with_stem(f"{MODEL.stem}_{precision}") for precision in ("fp16", "bf16")}
"""The same product in graphs of other types."""
# Root mean square errors relative to the result's, between those of 24, 11 and 8 bits: 1e-7, 3e-4 and 2e-3.
_FP32, _TF32 = 1e-5, 1e-3
_IN_RANGE = 1e-2  # above the error of 8 bits
_ABOVE_FP16 = 2.0**17


class NoPlacement(BackendFailed):
    """The build of ONNX Runtime does not report which provider computes what."""


def numbers(rows: int, columns: int, step: int) -> np.ndarray:
    """Float32 numbers from -1 to 1 that need every bit of the mantissa and are the same on every machine."""
    places = np.arange(rows * columns, dtype=np.int64) * step % 1021 - 510
    return (places.astype(np.float32) / np.float32(511)).reshape(rows, columns)


def require(name: str, requested: str, computed: str) -> None:
    """Raise ``BackendUnavailable`` for a provider that does not compute in the requested precision, with both."""
    if computed != requested:
        raise BackendUnavailable(
            name,
            f"precision={requested!r} was requested, but the provider computes in {computed} here",
            f"Use precision={computed!r}, or the provider's own options if they change it.",
        )


def measure(provider: str, set_up: Callable[[onnxruntime.SessionOptions], Sequence[Any]], model: Path = MODEL) -> str:
    """The precision in which a provider computes a matrix product: ``fp32``, ``tf32``, ``fp16`` or ``bf16``.

    Args:
        set_up: adds it to the session options, or returns the ``providers`` argument.
        model: :data:`MODEL`, or one of :data:`TYPED`.

    Raises:
        BackendFailed: another provider computes the product, or the result is not finite.
        NoPlacement: it is not known which provider computes it.
    """
    onnxruntime = import_runtime("onnxruntime")
    from onnxruntime.capi.onnxruntime_inference_collection import InferenceSession  # as in open_session()

    options = onnxruntime.SessionOptions()
    options.add_session_config_entry(RECORD_ASSIGNMENT, "1")
    options.log_severity_level = SILENT
    with runtime_errors(f"{provider} cannot be set up"):
        # With its fallback, ONNX Runtime measures the CPU provider where the requested one fails.
        session = InferenceSession(model.read_bytes(), options, providers=set_up(options), enable_fallback=0)
        placed = {part.ep_name for part in session.get_provider_graph_assignment_info()}
    if not placed:
        raise NoPlacement(f"{title()} does not report which nodes {provider} runs")
    if placed != {provider}:
        raise BackendFailed(
            f"{provider} could not be set up: {' and '.join(sorted(placed))} computed a matrix product instead. "
            "See ONNX Runtime's messages on standard error"
        )
    return of_session(session)


def of_session(session: onnxruntime.InferenceSession) -> str:
    """The precision in which a session of the model computes."""

    def error(scale: float) -> float:
        x = numbers(32, 64, 101) * np.float32(scale)
        expected = x.astype(np.float64) @ numbers(64, 16, 37)
        with runtime_errors("The provider cannot compute a matrix product"):
            (result,) = session.run(None, {"x": x})
        return float(np.sqrt(np.mean(np.square(result - expected)) / np.mean(np.square(expected))))

    usual = error(1.0)
    if not np.isfinite(usual):
        raise BackendFailed("The provider's matrix product is not finite")
    if usual < _FP32:
        return "fp32"
    if not error(_ABOVE_FP16) < _IN_RANGE:  # NaN compares as false
        return "fp16"  # sums in fp16 too have the error of bf16
    return "tf32" if usual < _TF32 else "bf16"
