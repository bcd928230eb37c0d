"""Make sure that a provider raises the errors of its kernels.

With one thread, OpenVINO's providers do not: a run that has to fail returns whatever is in the memory of its outputs,
such as another run's results (onnxruntime-openvino 1.24.1, onnxruntime-ep-openvino 1.8.1). One thread is also what they
have on a single core, whatever is requested. ``error_probe.onnx`` holds ``z = x + y`` and is run with sizes that do not
agree (``tests/fixtures/make_error_probe.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from isorun.plugin import BackendUnavailable, import_runtime, runtime_errors
from isorun_backends.onnxruntime.session import SILENT

if TYPE_CHECKING:
    import onnxruntime

MODEL = Path(__file__).with_suffix(".onnx")


def require(name: str, provider: str, set_up: Callable[[onnxruntime.SessionOptions], Sequence[Any]]) -> None:
    """Reject a provider that returns results where its kernel fails.

    Args:
        set_up: adds it to the session options, or returns the ``providers`` argument.

    Raises:
        BackendUnavailable: it does.
        BackendFailed: it cannot be set up.
    """
    onnxruntime = import_runtime("onnxruntime")
    from onnxruntime.capi.onnxruntime_inference_collection import InferenceSession  # as in open_session()

    options = onnxruntime.SessionOptions()
    options.log_severity_level = SILENT
    with runtime_errors(f"{provider} cannot be set up"):
        session = InferenceSession(MODEL.read_bytes(), options, providers=set_up(options), enable_fallback=0)
        session.run(None, {"x": np.ones(3, np.float32), "y": np.ones(3, np.float32)})
    try:
        session.run(None, {"x": np.ones(3, np.float32), "y": np.ones(4, np.float32)})
    except Exception:  # noqa: BLE001 - the error that the provider has to raise: its class is private
        return
    raise BackendUnavailable(
        name,
        f"{provider} returns results where its kernels fail, as it does with one thread or on one core",
        "Give the process two cores and the provider two threads, or use the backend openvino.",
    )
