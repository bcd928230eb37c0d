"""What a handler of a signal raises during a run reaches the caller. The handler is called, without a signal."""

import signal
from pathlib import Path

import numpy as np
import onnx.reference
import pytest
from onnxruntime.capi import onnxruntime_inference_collection

import isorun
import tiny
from isorun_backends.openvino.executable import OpenVINOExecutable


class Late(Exception):
    """As of a time-out by ``signal.alarm``."""


def handler(*_: object) -> None:
    raise Late


@pytest.mark.skipif(not hasattr(signal, "SIGUSR1"), reason="the system has no signals of users")
@pytest.mark.parametrize(
    ("backend", "owner", "method"),
    [
        ("ort-cpu", onnxruntime_inference_collection.InferenceSession, "run"),
        ("openvino", OpenVINOExecutable, "infer"),
        ("reference", onnx.reference.ReferenceEvaluator, "run"),
    ],
)
def test_a_time_out_by_a_signal_is_no_failure(
    bert: Path, backend: str, owner: type, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    armed, compute = False, getattr(owner, method)

    def interrupted(*arguments: object, **named: object) -> object:
        results = compute(*arguments, **named)
        if armed:
            handler()
        return results

    before = signal.signal(signal.SIGUSR1, handler)
    monkeypatch.setattr(owner, method, interrupted)
    try:
        with isorun.Session(bert, backend) as session:
            expected = session.run(None, tiny.feeds())
            armed = True
            with pytest.raises(Late):
                session.run(None, tiny.feeds())
            armed = False
            for result, right in zip(session.run(None, tiny.feeds()), expected, strict=True):
                np.testing.assert_allclose(result, right, rtol=1e-4, atol=1e-5)
    finally:
        signal.signal(signal.SIGUSR1, before)
