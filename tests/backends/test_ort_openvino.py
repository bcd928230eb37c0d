"""ONNX Runtime's OpenVINO provider, from the legacy wheel in an environment of its own."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import onnx.parser
import pytest

import isolation
import isorun
import tiny
from isorun.errors import BackendFailed, BackendUnavailable, InvalidFeeds, UnsupportedModel
from isorun.isolation import environments
from isorun.plugin import registry
from isorun.system.hardware import cpu_flags


@pytest.fixture(scope="session")
def environment() -> str:
    """Made once for all processes of a test run: a download of 70 MB."""
    wanted = {"python": isolation.openvino_python(), "install": [isolation.OPENVINO_WHEEL]}
    return environments.create(isolation.OPENVINO, **wanted).name


@pytest.fixture(scope="module")
def session(bert, environment):
    with isorun.Session(bert, "ort-openvino", environment=environment, threads=1) as opened:
        yield opened


@pytest.fixture(scope="module")
def reference(bert):
    with isorun.Session(bert, "reference") as opened:
        yield opened


def without_padding(outputs, feeds):
    hidden, *others = outputs
    return [hidden * (feeds["attention_mask"] != 0)[..., None], *others]


@pytest.mark.parametrize("kind", tiny.MASKS)
def test_it_computes_the_bert(session, reference, kind):
    feeds = tiny.feeds(3, 9, kind=kind)
    found, expected = (without_padding(each.run(None, feeds), feeds) for each in (session, reference))
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=2e-5)


def test_every_node_is_openvinos_and_what_it_computes_in_was_measured(session):
    provenance = session.provenance
    assert list(provenance.operators) == ["OpenVINOExecutionProvider"]
    assert sum(provenance.operators["OpenVINOExecutionProvider"].values()) > 50
    assert (provenance.precision, provenance.threads, provenance.dialect) == ("fp32", 1, "primitive")
    assert provenance.versions["onnxruntime-openvino"] == "1.24.1"
    assert provenance.environment["name"] == "ort-openvino"
    assert provenance.details["way"] == "legacy wheel"
    assert provenance.details["load_config"]["CPU"]["INFERENCE_NUM_THREADS"] == "1"


def test_many_threads(session, reference):
    feeds = [tiny.feeds(1 + seed % 4, 3 + seed % 12, seed=seed) for seed in range(40)]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda each: session.run(None, each), feeds))
    for each, outputs in zip(feeds, found, strict=True):
        np.testing.assert_allclose(
            without_padding(outputs, each)[0], without_padding(reference.run(None, each), each)[0], rtol=0, atol=2e-5
        )


def test_token_ids_are_checked_for_it(session):
    feeds = tiny.feeds()
    with pytest.raises(InvalidFeeds, match="'input_ids' holds 5000"):
        session.run(None, {**feeds, "input_ids": np.full_like(feeds["input_ids"], 5000)})


def test_bf16_is_bf16_or_an_error(bert, environment, reference):
    if "avx512_bf16" not in cpu_flags() and "amx_bf16" not in cpu_flags():
        with pytest.raises(BackendUnavailable, match="asked for bf16 and computes in fp32"):
            isorun.Session(bert, "ort-openvino", environment=environment, precision="bf16")
        return
    with isorun.Session(bert, "ort-openvino", environment=environment, precision="bf16") as session:
        assert session.provenance.precision == "bf16"
        off = np.abs(session.run(None, tiny.feeds())[1] - reference.run(None, tiny.feeds())[1]).max()
        assert 1e-4 < off < 0.1


def test_padding_that_it_cannot_remove_is_kept_and_said(session, bert, environment):
    assert session.provenance.details["padding"]["asked"] == "auto"
    with pytest.raises(UnsupportedModel, match=r"takes parts of .* that need one another's results"):
        isorun.Session(bert, "ort-openvino", environment=environment, padding="remove")
    feeds = tiny.feeds(8, 32, kind="right")
    hidden, _ = session.run(None, feeds)
    assert (hidden[feeds["attention_mask"] == 0] == 0).all()


def model(text):
    return onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : 17]> {text}')


DET = model("g (float[N,3,3] x) => (float[N] y) { d = Det(x)  y = Neg(d) }")


def test_a_node_that_it_does_not_take_is_an_error_unless_allowed(environment):
    with pytest.raises(UnsupportedModel, match=r"leaves nodes of .* to other providers: Det \(1\)") as caught:
        isorun.Session(DET, "ort-openvino", environment=environment)
    assert caught.value.operators == ("Det",)
    allowed = {"allow_cpu_nodes": True}
    with isorun.Session(DET, "ort-openvino", environment=environment, options=allowed) as session:
        assert session.get_providers() == ["OpenVINOExecutionProvider", "CPUExecutionProvider"]
        x = 2 * np.eye(3, dtype=np.float32)[None]
        np.testing.assert_allclose(session.run(None, {"x": x})[0], [-8])


def test_properties_reach_openvino_and_a_wrong_one_is_an_error(bert, environment):
    given = {"properties": {"PERFORMANCE_HINT": "THROUGHPUT"}}
    with isorun.Session(bert, "ort-openvino", environment=environment, options=given) as session:
        assert session.provenance.details["load_config"]["CPU"]["PERFORMANCE_HINT"] == "THROUGHPUT"
    with pytest.raises(BackendFailed, match="NONSENSE"):
        isorun.Session(bert, "ort-openvino", environment=environment, options={"properties": {"NONSENSE": 1}})
    for properties, message in (
        ({"INFERENCE_PRECISION_HINT": "f16"}, "INFERENCE_PRECISION_HINT follows from what the session asks"),
        (["PERFORMANCE_HINT"], "its option 'properties' is a list. Give a mapping"),
    ):
        with pytest.raises(BackendUnavailable, match=message):
            isorun.Session(bert, "ort-openvino", environment=environment, options={"properties": properties})


def test_without_the_provider_it_says_how_to_get_it():
    here = registry.get("ort-openvino").availability()
    assert not here.ok
    assert "has no OpenVINO provider" in here.reason
    assert here.remedy.endswith(f"isorun env create ovn --install '{isolation.OPENVINO_WHEEL}'")
