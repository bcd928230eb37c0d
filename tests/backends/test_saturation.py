"""8-bit products of models that were quantized elsewhere, on processors whose sums of two products saturate."""

import json
import os
import platform
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest

import isorun
import saturating

QEMU = os.environ.get("ISORUN_QEMU_X86_64")
pytestmark = pytest.mark.skipif(
    platform.machine().lower() not in ("x86_64", "amd64"), reason="only processors of x86 saturate"
)


@pytest.fixture
def without_vnni(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("isorun_backends.common_quantization.has_vnni", lambda: False)


def answer(model: onnx.ModelProto, backend: str, precision: str = "fp32") -> tuple[np.ndarray, str]:
    with isorun.Session(model.SerializeToString(), backend, precision=precision) as session:
        (result,) = session.run(None, {"x": saturating.VALUES})
        return result, session.provenance.precision


@pytest.mark.usefixtures("without_vnni")
def test_openvino_computes_in_floating_point() -> None:
    result, precision = answer(saturating.model(), "openvino")
    np.testing.assert_allclose(result, saturating.expected(), rtol=1e-5)
    assert precision == "fp32"


@pytest.mark.usefixtures("without_vnni")
def test_openvino_rejects_int8() -> None:
    with pytest.raises(isorun.BackendUnavailable) as caught:
        answer(saturating.model(), "openvino", "int8")
    assert "precision='fp32'" in caught.value.remedy


@pytest.mark.usefixtures("without_vnni")
@pytest.mark.parametrize("form", saturating.FORMS)
def test_onnx_runtime_computes_in_other_kernels(form: str) -> None:
    result, precision = answer(saturating.model(form), "ort-cpu")
    np.testing.assert_allclose(result, saturating.expected(), rtol=1e-5)
    assert precision == "int8"


@pytest.mark.usefixtures("without_vnni")
def test_onnx_runtime_rejects_weights_that_nodes_share() -> None:
    with pytest.raises(isorun.UnsupportedModel, match="share"):
        answer(saturating.model("qdq", times=2), "ort-cpu")
    result, _ = answer(saturating.model("qdq", times=2), "openvino")
    np.testing.assert_allclose(result, 2 * saturating.expected(), rtol=1e-5)


@pytest.mark.long
@pytest.mark.skipif(QEMU is None, reason="ISORUN_QEMU_X86_64 is not set; it names the program qemu-x86_64")
@pytest.mark.parametrize("backend", ["ort-cpu", "openvino"])
@pytest.mark.parametrize("form", saturating.FORMS)
def test_agrees_on_a_processor_without_vnni(form: str, backend: str) -> None:
    """Under qemu. There the bare runtimes are wrong: ONNX Runtime in both forms, OpenVINO in QDQ."""
    program = Path(saturating.__file__)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([*sys.path, str(program.parent)])}
    command = [str(QEMU), "-cpu", "Haswell", os.path.realpath(sys.executable), str(program), form, backend]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr
    np.testing.assert_allclose(json.loads(done.stdout), saturating.expected().tolist(), rtol=1e-5)
