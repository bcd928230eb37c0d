"""ONNX Runtime's providers, their options and its selection policies, as backends and arguments of isorun."""

from types import SimpleNamespace
from typing import Any

import onnx
import pytest
from onnxruntime.capi import _pybind_state

import isorun.compat as ort
from isorun.compat import providers
from isorun.compat.options import Translated
from isorun.errors import InvalidArgument
from isorun.plugin import registry

CPU = "CPUExecutionProvider"
MIGRAPHX = "MIGraphXExecutionProvider"


@pytest.fixture
def model() -> bytes:
    parsed = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17]> g (float[N] x) => (float[N] y) { y = Neg (x) }'
    )
    return bytes(parsed.SerializeToString())


@pytest.mark.parametrize(
    ("provider", "backend"),
    [
        (CPU, "ort-cpu"),
        ("CUDAExecutionProvider", "ort-cuda"),
        ("OpenVINOExecutionProvider", "ort-openvino"),
        (MIGRAPHX, "ort-ep:migraphx"),
        ("NvTensorRTRTXExecutionProvider", "ort-ep:nv-tensorrt-rtx"),
        ("WebGpuExecutionProvider", "ort-ep:webgpu"),
        ("CoreMLExecutionProvider", "ort-ep:coreml"),
        ("XnnpackExecutionProvider", "ort-ep:xnnpack"),
        ("CANNExecutionProvider", "ort-ep:cann"),
        ("VitisAIExecutionProvider", "ort-ep:vitisai"),
        ("ACLExecutionProvider", "ort-ep:acl"),
        ("QNNExecutionProvider", "ort-ep:qnn"),
    ],
)
def test_every_provider_of_python_packages_has_a_backend(
    provider: str, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (candidate,) = providers.candidates([provider], None, Translated())
    assert candidate.backend == backend
    assert registry.get(candidate.backend).name == backend
    # A plugin library brings its provider's name; ONNX Runtime 1.32 no longer lists some of them itself.
    monkeypatch.setattr(_pybind_state, "get_ep_devices", lambda: [SimpleNamespace(ep_name=provider)])
    assert providers.provider_of(backend) == provider


def test_passes_a_providers_own_options_and_order() -> None:
    given: list[Any] = [(MIGRAPHX, {"device_id": "1", "migraphx_fp16_enable": "1"}), CPU]
    first, second = providers.candidates(given, None, Translated(options={"deterministic": True}))
    assert (first.backend, second.backend) == ("ort-ep:migraphx", "ort-cpu")
    assert first.settings["precision"] == "fp16"
    assert first.settings["options"] == {
        "deterministic": True,
        "allow_cpu_nodes": True,
        "provider": {"device_id": "1", "migraphx_fp16_enable": "1"},
    }
    (alone,) = providers.candidates([MIGRAPHX], None, Translated())
    assert alone.settings["options"]["allow_cpu_nodes"] is False
    assert "precision" not in alone.settings


def test_refuses_by_name_what_cannot_be_honoured() -> None:
    with pytest.raises(InvalidArgument, match=f"migraphx_int8_enable of {MIGRAPHX}"):
        providers.candidates([(MIGRAPHX, {"migraphx_int8_enable": "True"})], None, Translated())


@pytest.mark.parametrize(
    ("policy", "kinds"),
    [
        ("DEFAULT", ["cpu"]),
        ("PREFER_CPU", ["cpu"]),
        ("PREFER_GPU", ["cuda", "gpu", "cpu"]),
        ("MAX_PERFORMANCE", ["cuda", "gpu", "cpu"]),
        ("PREFER_NPU", ["npu", "cpu"]),
        ("MAX_EFFICIENCY", ["npu", "cpu"]),
        ("MIN_OVERALL_POWER", ["npu", "cpu"]),
    ],
)
def test_policies_are_automatic_selection_by_device(policy: str, kinds: list[str]) -> None:
    options = ort.SessionOptions()
    options.set_provider_selection_policy(getattr(ort.OrtExecutionProviderDevicePolicy, policy))
    candidates = providers.by_policy(ort.options.translate(options))
    assert [(candidate.backend, candidate.settings["device"]) for candidate in candidates] == [
        ("auto", kind) for kind in kinds
    ]


def test_every_policy_is_known() -> None:
    for policy in ort.OrtExecutionProviderDevicePolicy.__members__.values():
        options = ort.SessionOptions()
        options.set_provider_selection_policy(policy)
        assert ort.options.translate(options).devices


def test_a_preferred_device_that_is_missing_is_reported(model: bytes, caplog: pytest.LogCaptureFixture) -> None:
    options = ort.SessionOptions()
    options.set_provider_selection_policy(ort.OrtExecutionProviderDevicePolicy.PREFER_NPU)
    options.add_session_config_entry("session.disable_prepacking", "1")
    with ort.InferenceSession(model, options) as session:
        assert session.run(None, {"x": [1.0]})[0].tolist() == [-1.0]
        assert session.provenance.skipped
    assert "skipped device='npu'" in caplog.text


def test_named_providers_take_precedence_over_a_policy(model: bytes) -> None:
    options = ort.SessionOptions()
    options.set_provider_selection_policy(ort.OrtExecutionProviderDevicePolicy.PREFER_NPU)
    with ort.InferenceSession(model, options, providers=[CPU]) as session:
        assert session.provenance.backend == "ort-cpu"
