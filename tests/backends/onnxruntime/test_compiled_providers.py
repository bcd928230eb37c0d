"""Providers that are compiled into the installed build of ONNX Runtime: found, refused, run, never replaced."""

from pathlib import Path

import numpy as np
import pytest
from onnxruntime.capi import _pybind_state, onnxruntime_inference_collection

import isorun
import tiny
from isorun.errors import BackendNotFound, BackendUnavailable, InvalidOption, UnsupportedModel
from isorun.plugin import registry
from isorun_backends.onnxruntime import builds, compiled_providers
from isorun_backends.onnxruntime.compiled_providers import PROVIDERS, Provider

CPU = "CPUExecutionProvider"
MIGRAPHX = "MIGraphXExecutionProvider"


@pytest.fixture
def plain(monkeypatch: pytest.MonkeyPatch) -> str:
    """A backend for a provider that works in every build."""
    monkeypatch.setitem(PROVIDERS, "plain", Provider(CPU, "cpu"))
    return "ort-ep:plain"


@pytest.fixture
def migraphx_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A build whose library of the provider is a text file, which the linker rejects."""
    monkeypatch.setattr(builds, "build", lambda: builds.Build("onnxruntime-migraphx", "", tmp_path))
    for part in ("shared", "migraphx"):
        (tmp_path / f"libonnxruntime_providers_{part}.so").write_text("no library")
    monkeypatch.setattr(_pybind_state, "get_available_providers", lambda: [MIGRAPHX, CPU])
    return tmp_path


def test_reads_the_providers_of_a_build_from_its_files(migraphx_build: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (migraphx_build / "libonnxruntime_providers_cuda.so").write_text("has a backend of its own")
    assert compiled_providers.installed() == ["migraphx"]
    assert "migraphx" in (registry.members("ort-ep") or ())
    monkeypatch.setattr(builds, "build", lambda: builds.Build("onnxruntime-webgpu", "", migraphx_build / "none"))
    assert compiled_providers.installed() == ["webgpu"]
    monkeypatch.setattr(builds, "build", lambda: None)
    assert compiled_providers.installed() == []


def test_runs_a_provider_of_the_build(plain: str, bert: Path) -> None:
    with (
        isorun.Session(bert, plain, padding="keep") as session,
        isorun.Session(bert, "ort-cpu", padding="keep") as usual,
    ):
        for result, expected in zip(session.run(None, tiny.feeds()), usual.run(None, tiny.feeds()), strict=True):
            np.testing.assert_allclose(result, expected, atol=1e-5)
        assert set(session.provenance.operators) == {CPU}
        assert session.provenance.precision == "fp32"
    assert registry.get(plain).availability().ok


def test_rejects_another_precision_than_the_measured_one(plain: str, bert: Path) -> None:
    with pytest.raises(BackendUnavailable, match="'fp16' was requested, but the provider computes in fp32"):
        isorun.Session(bert, plain, precision="fp16")


def test_options_are_those_of_the_provider_alone(plain: str, bert: Path) -> None:
    with pytest.raises(InvalidOption, match="ep_name"):
        isorun.Session(bert, plain, options={"ep_name": CPU})
    with pytest.raises(BackendUnavailable, match="device"):
        isorun.Session(bert, plain, device="gpu")


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("migraphx", "isorun env create migraphx --install onnxruntime-migraphx"),
        ("webgpu", "pip install onnxruntime-ep-webgpu"),
        ("qnn", "pip install onnxruntime-qnn"),
        ("rocm", "Use ort-ep:migraphx"),
        ("xnnpack", "build ONNX Runtime with it"),
    ],
)
def test_a_missing_provider_is_named_with_its_package(bert: Path, name: str, remedy: str) -> None:
    if name in (registry.members("ort-ep") or ()):
        pytest.skip(f"{name} is installed")
    with pytest.raises(BackendUnavailable) as caught:
        isorun.Session(bert, f"ort-ep:{name}")
    assert f"has no {PROVIDERS[name].name} (it has " in caught.value.reason
    assert CPU in caught.value.reason
    assert remedy in caught.value.remedy


@pytest.mark.parametrize("name", ["cpu", "cuda", "tensorrt"])
def test_a_provider_with_a_backend_of_its_own_names_it(bert: Path, name: str) -> None:
    with pytest.raises(BackendUnavailable, match=f"Use backend='ort-{name}'"):
        isorun.Session(bert, f"ort-ep:{name}")
    assert not registry.get(f"ort-ep:{name}").availability().ok


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(BackendNotFound, match="did you mean 'ort-ep:migraphx'"):
        registry.get("ort-ep:migrafx")


@pytest.mark.usefixtures("migraphx_build")
def test_a_provider_that_does_not_load_is_never_the_cpu(bert: Path) -> None:
    for message in (registry.get("ort-ep:migraphx").availability().reason, str(_error(bert, "ort-ep:migraphx"))):
        assert f"{MIGRAPHX} of onnxruntime-migraphx" in message
        assert "libonnxruntime_providers_shared.so" in message
    (finding,) = registry.get("ort-ep:migraphx").diagnose()
    assert MIGRAPHX in finding.what


def _error(model: Path, backend: str) -> BackendUnavailable:
    with pytest.raises(BackendUnavailable) as caught:
        isorun.Session(model, backend, options={"allow_cpu_nodes": True})
    return caught.value


def test_rejects_a_build_that_cannot_report_placement(plain: str, bert: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    session = onnxruntime_inference_collection.Session
    old = r"cannot report which provider runs which node.*1\.24 or newer"
    with isorun.Session(bert, "ort-cpu") as opened:
        monkeypatch.delattr(session, "get_provider_graph_assignment_info")
        with pytest.raises(BackendUnavailable, match=old):
            opened.provenance  # noqa: B018
    with pytest.raises(BackendUnavailable, match=old):
        isorun.Session(bert, plain)


def test_rejects_a_build_that_reports_no_placement(plain: str, bert: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As onnxruntime-webgpu 1.27.0, whose provider runs the nodes."""
    session = onnxruntime_inference_collection.InferenceSession
    monkeypatch.setattr("isorun_backends.onnxruntime.plugin_provider._measured", {})
    monkeypatch.setattr(session, "get_provider_graph_assignment_info", lambda _: [])
    with pytest.raises(BackendUnavailable, match=f"does not report which nodes {CPU} runs.*plugin package"):
        isorun.Session(bert, plain)


def test_text_is_rejected(plain: str, tmp_path: Path) -> None:
    import onnx

    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17]> g (string[1] x) => (string[1] y) { y = Identity (x) }'
    )
    onnx.save(model, tmp_path / "text.onnx")
    with pytest.raises(UnsupportedModel, match="string tensors"):
        isorun.Session(tmp_path / "text.onnx", plain)
