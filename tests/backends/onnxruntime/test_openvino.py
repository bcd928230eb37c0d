"""ONNX Runtime's OpenVINO provider, from the legacy wheel in an isolated environment."""

from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec

import numpy as np
import pytest

import isolation
import isorun
import tiny
from isorun.errors import BackendFailed, BackendUnavailable, InvalidFeeds, InvalidOption, UnsupportedModel
from isorun.isolation import environments
from isorun.plugin import registry
from isorun.system.hardware import cpu_flags
from onnx_text import graph


@pytest.fixture(scope="session")
def environment() -> str:
    """Made once for all processes of a test run: a download of 70 MB."""
    wanted = {"python": isolation.openvino_python(), "install": [isolation.OPENVINO_WHEEL]}
    return environments.create(isolation.OPENVINO, **wanted).name


@pytest.fixture(scope="module")
def session(bert, environment):
    with isorun.Session(bert, "ort-openvino", environment=environment) as opened:
        yield opened


@pytest.fixture(scope="module")
def reference(bert):
    with isorun.Session(bert, "reference") as opened:
        yield opened


def without_padding(outputs, feeds):
    hidden, *others = outputs
    return [hidden * (feeds["attention_mask"] != 0)[..., None], *others]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", tiny.MASKS)
def test_results_match_the_reference(session, reference, kind):
    feeds = tiny.feeds(3, 9, kind=kind)
    outputs, expected = (without_padding(opened.run(None, feeds), feeds) for opened in (session, reference))
    for output, wanted in zip(outputs, expected, strict=True):
        np.testing.assert_allclose(output, wanted, rtol=0, atol=2e-5)


def test_provenance_has_the_assignment_and_the_measured_precision(session):
    provenance = session.provenance
    assert list(provenance.operators) == ["OpenVINOExecutionProvider"]
    assert sum(provenance.operators["OpenVINOExecutionProvider"].values()) > 50
    assert (provenance.precision, provenance.threads, provenance.dialect) == ("fp32", None, "primitive")
    assert provenance.versions["onnxruntime-openvino"] == "1.24.1"
    assert provenance.environment["name"] == "ort-openvino"
    assert provenance.details["package"] == "legacy wheel"
    assert int(provenance.details["load_config"]["CPU"]["INFERENCE_NUM_THREADS"]) >= 2


def test_concurrent_runs(session, reference):
    feeds = [tiny.feeds(1 + seed % 4, 3 + seed % 12, seed=seed) for seed in range(40)]
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda values: session.run(None, values), feeds))
    for inputs, outputs in zip(feeds, results, strict=True):
        expected = without_padding(reference.run(None, inputs), inputs)[0]
        np.testing.assert_allclose(without_padding(outputs, inputs)[0], expected, rtol=0, atol=2e-5)


def test_bf16_computes_in_bf16_or_is_rejected(bert, environment, reference):
    if "avx512_bf16" not in cpu_flags() and "amx_bf16" not in cpu_flags():
        with pytest.raises(BackendUnavailable, match="computes in fp32"):
            isorun.Session(bert, "ort-openvino", environment=environment, precision="bf16")
        return
    with isorun.Session(bert, "ort-openvino", environment=environment, precision="bf16") as session:
        assert session.provenance.precision == "bf16"
        off = np.abs(session.run(None, tiny.feeds())[1] - reference.run(None, tiny.feeds())[1]).max()
        assert 1e-4 < off < 0.1


def test_padding_is_removed(session, bert, environment):
    feeds = tiny.feeds(8, 32, kind="right")
    hidden, _ = session.run(None, feeds)
    assert session.provenance.details["padding"]["requested"] == "auto"
    with isorun.Session(bert, "ort-openvino", environment=environment, padding="remove") as without:
        np.testing.assert_allclose(without.run(None, feeds)[0], hidden, atol=1e-5)
    assert (hidden[feeds["attention_mask"] == 0] == 0).all()


SUM = graph("g (float[N] x, float[M] y) => (float[K] z) { z = Add(x, y) }")


def test_a_kernel_that_fails_raises_and_harms_no_other_run(environment):
    """With one thread, the provider would return the results of the run before."""
    with isorun.Session(SUM, "ort-openvino", environment=environment) as session:
        right = {"x": np.ones(3, np.float32), "y": np.ones(3, np.float32)}
        for _ in range(3):
            np.testing.assert_array_equal(session.run(None, right)[0], [2, 2, 2])
            with pytest.raises(BackendFailed, match="mismatch"):
                session.run(None, {**right, "y": np.ones(4, np.float32)})


def test_threads_are_not_to_be_set(environment):
    with pytest.raises(BackendUnavailable, match="threads"):
        isorun.Session(SUM, "ort-openvino", environment=environment, threads=1)
    with pytest.raises(InvalidOption, match="loses the errors"):
        isorun.Session(
            SUM, "ort-openvino", environment=environment, options={"properties": {"INFERENCE_NUM_THREADS": 1}}
        )


def test_integers_beyond_32_bits_are_rejected(environment):
    model = graph("g (int64[N] x) => (int64[N] y) { y = Neg(x) }")
    with isorun.Session(model, "ort-openvino", environment=environment) as session:
        np.testing.assert_array_equal(session.run(None, {"x": np.array([2**31 - 1])})[0], [1 - 2**31])
        with pytest.raises(InvalidFeeds, match="'x' has numbers outside"):
            session.run(None, {"x": np.array([2**31])})


def test_inputs_that_no_node_reads_are_refused(environment):
    """The legacy wheel would negate x."""
    model = graph("g (float[N] x, float[N] y) => (float[N] z) { z = Neg(y) }")
    with pytest.raises(UnsupportedModel, match="reads its input 'x'"):
        isorun.Session(model, "ort-openvino", environment=environment)


DET = graph("g (float[N,3,3] x) => (float[N] y) { d = Det(x)  y = Neg(d) }")


def test_rejects_an_unsupported_node_unless_allowed(environment):
    with pytest.raises(UnsupportedModel, match=r"Det \(1\)") as caught:
        isorun.Session(DET, "ort-openvino", environment=environment)
    assert caught.value.operators == ("Det",)
    allowed = {"allow_cpu_nodes": True}
    with isorun.Session(DET, "ort-openvino", environment=environment, options=allowed) as session:
        assert session.get_providers() == ["OpenVINOExecutionProvider", "CPUExecutionProvider"]
        x = 2 * np.eye(3, dtype=np.float32)[None]
        np.testing.assert_allclose(session.run(None, {"x": x})[0], [-8])


def test_properties_reach_openvino_and_invalid_ones_are_rejected(bert, environment):
    options = {"properties": {"PERFORMANCE_HINT": "THROUGHPUT"}}
    with isorun.Session(bert, "ort-openvino", environment=environment, options=options) as session:
        assert session.provenance.details["load_config"]["CPU"]["PERFORMANCE_HINT"] == "THROUGHPUT"
    with pytest.raises(BackendFailed, match="NONSENSE"):
        isorun.Session(bert, "ort-openvino", environment=environment, options={"properties": {"NONSENSE": 1}})
    for properties, message in (({"INFERENCE_PRECISION_HINT": "f16"}, "reserved"), (["PERFORMANCE_HINT"], "mapping")):
        with pytest.raises(InvalidOption, match=message):
            isorun.Session(bert, "ort-openvino", environment=environment, options={"properties": properties})


def test_reports_how_to_install_the_provider():
    if find_spec("onnxruntime_ep_openvino") is not None:
        pytest.skip("the provider is installed here")
    availability = registry.get("ort-openvino").availability()
    assert not availability.ok
    assert "has no OpenVINO provider" in availability.reason
    assert availability.remedy.endswith(f"isorun env create ovn --install '{isolation.OPENVINO_WHEEL}'")
