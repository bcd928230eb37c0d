"""Whether a provider raises the errors of its kernels."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

from isorun.errors import BackendFailed, BackendUnavailable
from isorun_backends.onnxruntime import error_probe

sys.path.insert(0, str(Path(__file__).parents[2] / "fixtures"))
import make_error_probe

CPU = "CPUExecutionProvider"


def test_a_provider_that_raises_is_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is run with sizes that agree, and with others."""
    run, sizes = onnxruntime.InferenceSession.run, []

    def watched(session: Any, names: Any, feeds: Any) -> Any:
        sizes.append((len(feeds["x"]), len(feeds["y"])))
        return run(session, names, feeds)

    monkeypatch.setattr(onnxruntime.capi.onnxruntime_inference_collection.InferenceSession, "run", watched)
    error_probe.require("ort-cpu", CPU, lambda _: [CPU])
    assert sizes == [(3, 3), (3, 4)]


def test_a_provider_that_returns_other_results_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """As OpenVINO's with one thread, which needs an environment (test_openvino.py)."""
    run = onnxruntime.InferenceSession.run

    def lose_errors(session: Any, names: Any, feeds: Any) -> Any:
        return run(session, names, {**feeds, "y": feeds["y"][:3]})

    monkeypatch.setattr(onnxruntime.capi.onnxruntime_inference_collection.InferenceSession, "run", lose_errors)
    with pytest.raises(BackendUnavailable, match="returns results where its kernels fail") as caught:
        error_probe.require("odd", "OddProvider", lambda _: [CPU])
    assert caught.value.backend == "odd"
    assert "two threads" in str(caught.value)


def test_a_provider_that_cannot_be_set_up() -> None:
    with pytest.raises(BackendFailed, match="OddProvider cannot be set up"):
        error_probe.require("odd", "OddProvider", lambda _: ["OddProvider"])


def test_the_model_is_as_the_script_writes_it() -> None:
    assert error_probe.MODEL.read_bytes() == make_error_probe.model().SerializeToString()
    session = onnxruntime.InferenceSession(error_probe.MODEL, providers=[CPU])
    assert np.array_equal(session.run(None, {name: np.ones(2, np.float32) for name in "xy"})[0], [2, 2])
