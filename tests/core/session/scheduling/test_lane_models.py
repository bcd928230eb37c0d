"""Models of lanes that are compiled after the session's own."""

from concurrent.futures import wait
from pathlib import Path

import numpy as np
import onnx
import pytest

import isorun
from isorun.tuning import concurrency
from isorun.tuning.concurrency import ConcurrencyPlan

MODEL = '<ir_version: 8, opset_import: ["" : 17]> g (float[n, 4] x) => (float[n, 4] y) { y = Neg (x) }'


@pytest.mark.parametrize("backend", ["ort-cpu", "openvino"])
def test_overlapping_runs_go_on_with_what_was_opened(
    backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(concurrency, "remembered", lambda subject: ConcurrencyPlan(2, 1, 0))
    path, replacement = tmp_path / "model.onnx", tmp_path / "other.onnx"
    path.write_bytes(onnx.parser.parse_model(MODEL).SerializeToString())
    replacement.write_bytes(onnx.parser.parse_model(MODEL.replace("Neg", "Abs")).SerializeToString())
    x = np.ones((1, 4), np.float32)
    with isorun.Session(path, backend, threads=2) as session:
        assert session.run(None, {"x": x})[0].tolist() == (-x).tolist()
        replacement.replace(path)
        futures = [session.submit(None, {"x": x}) for _ in range(64)]
        wait(futures, 30)
        for future in futures:
            assert future.result()[0].tolist() == (-x).tolist()
        assert session.run(None, {"x": x})[0].tolist() == (-x).tolist()
    assert sum("overlapping runs share one model" in record.getMessage() for record in caplog.records) <= 2
