"""The backends of isorun keep the contract that they are written against."""

from dataclasses import replace
from importlib.util import find_spec

import pytest

from isorun.plugin import registry
from isorun_backends.openvino.faults import FAULTS
from isorun_conformance import runner
from isorun_conformance.suite import Conformance

INT64 = {  # ort-ep does not reject such feeds
    name: replace(known, reason="OpenVINO computes 64-bit integers in 32 bits", exception="AssertionError")
    for name, known in FAULTS.checks.items()
    if "int64" in name
}


@pytest.mark.sampled(5)
class TestOrtCpu(Conformance, backend="ort-cpu"):
    pass


@pytest.mark.long
class TestOpenVINO(Conformance, backend="openvino"):
    pass


@pytest.mark.long
class TestReference(Conformance, backend="reference"):
    pass


@pytest.mark.long
@pytest.mark.skipif(find_spec("onnxruntime_ep_openvino") is None, reason="onnxruntime-ep-openvino is not installed")
class TestOpenVINOProvider(Conformance, backend="ort-ep:openvino", known_failures=INT64):
    pass


@pytest.fixture(scope="module")
def webgpu() -> str:
    """The name of the backend, where its package and a driver are installed."""
    if find_spec("onnxruntime_ep_webgpu") is None:
        pytest.skip("onnxruntime-ep-webgpu is not installed")
    name = "ort-ep:webgpu"
    availability = registry.get(name).availability()
    if not availability.ok:
        pytest.skip(availability.reason)
    return name


@pytest.mark.long
@pytest.mark.usefixtures("webgpu")
class TestWebGPUProvider(Conformance, backend="ort-ep:webgpu"):
    pass


def test_first_checks_of_webgpu(webgpu: str) -> None:
    """Those that a software driver computes in seconds."""
    report = runner.run(webgpu, only=["true precision", "true placement", "binding", "recovery", "wrapped errors"])
    assert report.passed, report.causes


@pytest.mark.parametrize("backend", ["openvino", pytest.param("reference", marks=pytest.mark.long)])
def test_most_important_checks(backend: str) -> None:
    """Of backends whose whole suite takes minutes."""
    only = ["true precision", "precision fp32", "feeds", "results", "binding", "wrapped errors", "recovery"]
    report = runner.run(backend, only=only)
    assert report.passed, report.causes
