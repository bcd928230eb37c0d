"""Devices of openvino: AUTO and HETERO over the processor, and those that this machine lacks."""

import numpy as np
import openvino
import pytest

import isorun
import tiny
from isorun.errors import BackendFailed, BackendUnavailable, InvalidArgument, InvalidOption
from isorun_backends.openvino.devices import Target
from isorun_conformance import runner
from onnx_text import graph

PRESENT = openvino.Core().available_devices
WITHOUT_OTHERS = pytest.mark.skipif(PRESENT != ["CPU"], reason="it has a GPU or NPU")  # which AUTO would choose
OVER_CPU = ["auto:cpu", "hetero:cpu"]


@pytest.fixture(scope="module")
def cpu(bert):
    with isorun.Session(bert, "openvino", padding="keep", threads=2) as session:
        yield session


@pytest.mark.parametrize("device", [*OVER_CPU, pytest.param("AUTO", marks=WITHOUT_OTHERS)])
def test_same_outputs_and_report_as_the_processor(bert, cpu, device):
    with isorun.Session(bert, "openvino", device=device, padding="keep", threads=2) as session:
        for mask in tiny.MASKS:
            feeds = tiny.feeds(3, 12, kind=mask)
            for output, expected in zip(session.run(None, feeds), cpu.run(None, feeds), strict=True):
                np.testing.assert_allclose(output, expected, atol=2e-6)
        ran, expected = session.provenance, cpu.provenance
    assert (ran.device, ran.precision, ran.threads) == (expected.device, expected.precision, 2)
    assert ran.operators == expected.operators
    assert ran.details["execution_devices"] == ["CPU"]


@pytest.mark.parametrize("device", OVER_CPU)
def test_padding_is_removed_as_on_the_processor(bert, cpu, device):
    with isorun.Session(bert, "openvino", device=device, threads=2) as session:
        for mask in tiny.MASKS:
            feeds = tiny.feeds(8, 32, kind=mask)
            expected = cpu.run(["last_hidden_state"], feeds)[0]
            expected[feeds["attention_mask"] == 0] = 0
            np.testing.assert_allclose(session.run(["last_hidden_state"], feeds)[0], expected, atol=2e-5)
        assert session.provenance.details["padding"]["operators"].keys() == {"CPU"}


@pytest.mark.parametrize("device", OVER_CPU)
@pytest.mark.parametrize("threads", [1, 2])
def test_a_failed_run_leaves_no_trace(device, threads):
    model = graph("g (float[N] x, float[M] y) => (float[K] z) { z = Add (x, y) }")
    x, y = np.arange(3, dtype=np.float32), np.ones(3, np.float32)
    with isorun.Session(model, "openvino", device=device, threads=threads) as session:
        for _ in range(3):
            with pytest.raises(BackendFailed):
                session.run(None, {"x": x, "y": np.ones(2, np.float32)})
            np.testing.assert_array_equal(session.run(None, {"x": x, "y": y})[0], x + y)


@pytest.mark.parametrize("device", OVER_CPU)
def test_threads_and_concurrent_requests(bert, cpu, device):
    requests = [tiny.feeds(1, length) for length in (3, 5, 9, 17)]
    with isorun.Session(bert, "openvino", device=device, threads=1, padding="keep") as session:
        futures = [session.submit(None, feeds) for feeds in requests * 4]
        for future, feeds in zip(futures, requests * 4, strict=True):
            np.testing.assert_allclose(future.result(60)[0], cpu.run(None, feeds)[0], atol=2e-6)


@pytest.mark.parametrize("device", OVER_CPU)
def test_int8(bert, device):
    samples = [tiny.feeds(64, 12) for _ in range(6)]
    with isorun.Session(bert, "openvino", device=device, precision="int8", calibration=samples) as session:
        assert "int8" in session.provenance.precision.split("+")


@pytest.mark.parametrize("device", OVER_CPU)
@pytest.mark.parametrize(
    "properties",
    [
        {"PERFORMANCE_HINT": "THROUGHPUT"},
        {"DEVICE_PROPERTIES": {"CPU": {"NUM_STREAMS": 2}}},
    ],
)
def test_properties_reach_the_device(bert, device, properties):
    with isorun.Session(bert, "openvino", device=device, options={"properties": properties}) as session:
        session.run(None, tiny.feeds())
    nonsense = {"PERFORMANCE_HINT": "NONSENSE", "DEVICE_PROPERTIES": {"CPU": {"NUM_STREAMS": "NONSENSE"}}}
    for key in properties:
        with pytest.raises(BackendFailed, match="NONSENSE"):
            isorun.Session(bert, "openvino", device=device, options={"properties": {key: nonsense[key]}})


@pytest.mark.parametrize(
    ("properties", "message"),
    [
        ({"PERFORMANCE_HINTS": "LATENCY"}, "did you mean 'PERFORMANCE_HINT'"),
        ({"INFERENCE_PRECISION_HINT": "f16"}, "precision="),
        ({"MULTI_DEVICE_PRIORITIES": "CPU"}, "device="),
        ({"DEVICE_PROPERTIES": {"CPU": {"NUM_STREAM": 2}}}, "did you mean 'NUM_STREAMS'"),
        ({"DEVICE_PROPERTIES": {"CPU": {"INFERENCE_NUM_THREADS": 2}}}, "threads="),
        ({"DEVICE_PROPERTIES": {"GPU": {}}}, "'GPU' is not a device of HETERO:CPU"),
    ],
)
def test_rejects_invalid_properties(bert, properties, message):
    with pytest.raises(InvalidOption, match=message):
        isorun.Session(bert, "openvino", device="hetero:cpu", options={"properties": properties})


@WITHOUT_OTHERS
@pytest.mark.parametrize("device", ["gpu", "gpu.1", "npu", "auto:gpu,cpu", "hetero:gpu,cpu"])
def test_an_absent_device_names_those_that_are_here(bert, device):
    with pytest.raises(BackendUnavailable, match=r"no device '(gpu|gpu\.1|npu)' in this machine \(available: cpu\)"):
        isorun.Session(bert, "openvino", device=device)


def test_backend_auto_skips_it_where_the_device_is_absent(bert):
    with isorun.Session(bert, ["openvino", "ort-cpu"], device="cpu") as session:
        assert session.provenance.backend == "openvino"
    with pytest.raises(BackendUnavailable, match="ort-cpu"):
        isorun.Session(bert, ["openvino", "ort-cpu"], device="gpu.7")


@pytest.mark.parametrize(
    ("device", "message"),
    [
        ("hetero", "did you mean 'hetero:DEVICES'"),
        ("hetero:gpux", "a list such as gpu,cpu"),
        ("gpu:1", "did you mean 'gpu'"),
        ("cpu.0", "did you mean 'cpu'"),
    ],
)
def test_rejects_wrong_names(bert, device, message):
    with pytest.raises(InvalidArgument, match=message):
        isorun.Session(bert, "openvino", device=device)


class FakeCore:
    """OpenVINO on a machine with an integrated and a discrete GPU and an NPU."""

    available_devices = ("CPU", "GPU.0", "GPU.1", "NPU")

    def get_property(self, device, name):
        floats = {"CPU": ["FP32", "BF16"], "NPU": ["FP16"]}.get(device, ["FP32", "FP16"])
        assert name == "OPTIMIZATION_CAPABILITIES"
        return [*floats, "INT8"]


@pytest.mark.parametrize(
    ("device", "precision", "target", "hints"),
    [
        ("gpu", "fp16", "GPU", {"GPU": "f16"}),
        ("gpu.1", "fp32", "GPU.1", {"GPU.1": "f32"}),
        ("gpu", "int8", "GPU", {"GPU": "f16"}),
        ("npu", "int8", "NPU", {"NPU": "f16"}),
        ("auto:gpu.1,cpu", "fp32", "AUTO:GPU.1,CPU", {"GPU.1": "f32", "CPU": "f32"}),
        ("hetero:npu,gpu", "fp16", "HETERO:NPU,GPU", {"NPU": "f16", "GPU": "f16"}),
        ("auto", "fp32", "AUTO:-NPU", {"CPU": "f32", "GPU.0": "f32", "GPU.1": "f32"}),
        ("auto", "bf16", "AUTO:-GPU.0,-GPU.1,-NPU", {"CPU": "bf16"}),
        ("auto", "fp16", "AUTO:-CPU", {"GPU.0": "f16", "GPU.1": "f16", "NPU": "f16"}),
    ],
)
def test_what_a_device_and_a_precision_mean(device, precision, target, hints):
    chosen = Target("openvino", FakeCore(), device, precision)
    assert (chosen.device, chosen.hints) == (target, hints)
    properties = chosen.properties({}, 2, {})
    by_device = properties.get("DEVICE_PROPERTIES", {target: properties})
    assert {name: own["INFERENCE_PRECISION_HINT"] for name, own in by_device.items()} == hints
    assert {name for name, own in by_device.items() if "INFERENCE_NUM_THREADS" in own} == {"CPU"} & hints.keys()


@pytest.mark.parametrize(
    ("device", "precision", "message"),
    [
        ("npu", "fp32", r"device npu has no fp32 arithmetic \(supported: fp16, int8\)"),
        ("gpu", "bf16", r"device gpu has no bf16 arithmetic \(supported: fp32, fp16, int8\)"),
        ("hetero:gpu,cpu", "fp16", "this processor has no fp16 arithmetic"),
        ("gpu.2", "fp32", r"'gpu\.2'.*available: cpu, gpu\.0, gpu\.1, npu"),
    ],
)
def test_rejects_what_a_device_cannot_compute(device, precision, message):
    with pytest.raises(BackendUnavailable, match=message):
        Target("openvino", FakeCore(), device, precision)


@pytest.mark.parametrize(
    "only",
    [
        ["true device"],
        pytest.param(["true placement", "precision fp32", "results", "binding", "recovery"], marks=pytest.mark.long),
    ],
    ids=["report", "rest"],
)
@pytest.mark.parametrize("device", ["hetero:cpu", pytest.param("auto:cpu", marks=pytest.mark.long)])
def test_conformance(device, only):
    report = runner.run("openvino", device=device, only=only)
    assert report.passed, report.causes
