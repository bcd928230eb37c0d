"""Which backend runs a model, and which requests are rejected."""

import json
import logging

import pytest

import exports
import flaws
import isorun
from isorun.errors import BackendNotFound, BackendUnavailable, InvalidArgument, InvalidModel
from isorun.plugin import listing
from isorun.system.cache import Cache
from isorun.system.threads import usable_cores
from isorun_conformance import fakes


@pytest.fixture
def exported() -> bytes:
    return exports.content("bert-torchscript17-eager")


PRIORITIES = """
from isorun.plugin import Capabilities
from isorun_conformance import fakes

class First(fakes.Right):
    capabilities = Capabilities(dialects=("primitive",), priority=1000, package="no_such_engine")

class Second(fakes.Right):
    capabilities = Capabilities(dialects=("primitive",), dynamic_shapes=True, priority=999)

class Never(fakes.Right):
    capabilities = Capabilities(dialects=("primitive",), priority=None)
"""
NAMES = {"a-first": "priorities:First", "a-second": "priorities:Second", "a-never": "priorities:Never"}


def test_auto_considers_every_backend_by_priority(bert, caplog):
    with fakes.installed(NAMES) as folder:
        (folder / "priorities.py").write_text(PRIORITIES)
        with caplog.at_level(logging.INFO, "isorun"), isorun.Session(bert) as session:
            assert session.provenance.backend == "a-second"
            assert [name for name, _ in session.provenance.skipped] == ["a-first"]
        (record,) = [logged for logged in caplog.records if "backend='auto'" in logged.getMessage()]
        assert "a-first: the package 'no_such_engine' is not installed" in record.getMessage()
        order = [candidate.name for candidate in listing.candidates(Cache())]
    assert order[:2] == ["a-first", "a-second"]
    assert "a-never" not in order
    assert order.index("ort-cuda") < order.index("tensorrt") < order.index("ort-cpu") < order.index("openvino")


def test_auto_uses_ort_cpu_without_a_gpu(bert):
    with isorun.Session(bert) as session:
        assert session.provenance.backend == "ort-cpu"
        assert {"ort-cuda", "tensorrt", "ort-tensorrt"} == {name for name, _ in session.provenance.skipped}


def test_a_list_is_an_order_of_preference_and_skips_are_recorded(bert):
    with isorun.Session(bert, backend=["ort-cpu", "openvino", "reference"], precision="fp64") as session:
        provenance = session.provenance
    assert (provenance.backend, provenance.precision) == ("reference", "fp64")
    reasons = dict(provenance.skipped)
    assert list(reasons) == ["ort-cpu", "openvino"]
    assert "precision 'fp64' (supported: fp32" in reasons["ort-cpu"]
    assert "skipped" in str(provenance)


@pytest.mark.parametrize("names", [["opnvino", "ort-cpu"], ["ort-cpu", "opnvino"]], ids=["first", "last"])
def test_an_unknown_name_in_a_list_is_an_error(bert, names):
    with pytest.raises(BackendNotFound, match=r"'opnvino'.*'openvino'"):
        isorun.Session(bert, names)


def test_a_skipped_backend_is_logged_once(bert, caplog):
    names, options = ["openvino", "ort-cpu"], {"inter_op_threads": 1}
    with caplog.at_level(logging.WARNING, "isorun"), isorun.Session(bert, names, options=options) as session:
        assert session.provenance.backend == "ort-cpu"
    (record,) = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert record.name == "isorun"
    assert "openvino" in record.getMessage()


@pytest.mark.parametrize("backend", [["openvino", "ort-cpu"], "openvino", "auto"], ids=str)
def test_each_backend_gets_its_own_options(bert, backend):
    options = {"openvino": {"properties": {"PERFORMANCE_HINT": "THROUGHPUT"}}}
    with isorun.Session(bert, backend, options=options) as session:
        expected = "ort-cpu" if backend == "auto" else "openvino"
        assert session.provenance.backend == expected
        assert session._resolved.config.options == ({} if backend == "auto" else options["openvino"])
    shared = {"ort-cpu": {"graph_optimization_level": "all"}, "inter_op_threads": 1}
    with isorun.Session(bert, ["openvino", "ort-cpu"], options=shared) as session:
        assert session._resolved.config.options == {"inter_op_threads": 1, "graph_optimization_level": "all"}


@pytest.mark.parametrize(
    ("backend", "options", "problem"),
    [
        ("openvino", {"openvino": {"property": {}}}, "unknown option 'property'"),
        ("openvino", {"openvno": {"properties": {}}}, "did you mean 'openvino'"),
        (["openvino", "ort-cpu"], {"openvno": {"properties": {}}}, "did you mean 'openvino'"),
        (["openvino", "ort-cpu"], {"reference": {}}, "unknown option 'reference'"),
    ],
    ids=str,
)
def test_rejects_options_of_no_requested_backend(bert, backend, options, problem):
    with pytest.raises(InvalidArgument, match=problem):
        isorun.Session(bert, backend, options=options)


def test_opening_is_logged_without_the_messages_of_onnx_ir(exported, tmp_path, caplog):
    with caplog.at_level(logging.INFO):
        for state in ("made", "found"):
            caplog.clear()
            isorun.Session(exported, "ort-cpu", cache_dir=tmp_path).close()
            assert {record.name for record in caplog.records} == {"isorun"}
            for part in ("ort-cpu", "SelfAttention", state, " s"):
                assert part in caplog.records[-1].getMessage()


def test_a_log_level_that_the_application_chose_for_onnx_ir_is_kept(exported, tmp_path, caplog):
    with caplog.at_level(logging.INFO, "onnx_ir"):
        isorun.Session(exported, "ort-cpu", cache_dir=tmp_path).close()
        assert logging.getLogger("onnx_ir").level == logging.INFO
    assert any(record.name.startswith("onnx_ir") for record in caplog.records)


@pytest.mark.parametrize(
    ("plugin", "reason"), [("rude", "OSError"), ("says-true", "bool"), ("compiles-nothing", "NoneType")]
)
def test_skips_a_plugin_that_breaks_its_contract(bert, plugin, reason):
    with fakes.installed(flaws.names()):
        with pytest.raises(isorun.IsorunError, match=reason) as caught:
            isorun.Session(bert, plugin)
        assert "flaws.discovery" in str(caught.value)
        with isorun.Session(bert, [plugin, "reference"]) as session:
            ((name, why),) = session.provenance.skipped
    assert name == plugin
    assert reason in why


def test_names_the_reason_of_each_backend_if_none_can_run_the_model(bert):
    with pytest.raises(BackendUnavailable, match="'ort-cpu' or 'openvino'") as caught:
        isorun.Session(bert, backend=["ort-cpu", "openvino"], precision="fp64")
    assert all(f"  {name}: it does not support precision" in str(caught.value) for name in ("ort-cpu", "openvino"))


def test_a_bad_model_is_not_tried_on_another_backend(tmp_path):
    (tmp_path / "bad.onnx").write_bytes(b"not a model")
    with pytest.raises(InvalidModel, match="not an ONNX model"):
        isorun.Session(tmp_path / "bad.onnx", backend=["ort-cpu", "openvino"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"precision": "float32"}, "precision 'float32'.*'fp32'"),
        ({"backend": "openvino", "precision": "fp8"}, "precision 'fp8'"),
        ({"device": "gpu0"}, "device 'gpu0'.*'gpu'"),
        ({"device": 0}, "device must be a str"),
        ({"backend": "ort-cpu", "options": {"inter_op_thread": 1}}, "'inter_op_thread'.*'inter_op_threads'"),
        ({"options": {"inter_op_thread": 1}}, "'inter_op_thread'.*'inter_op_threads'"),
        ({"backend": ["openvino", "ort-cpu"], "options": {3: 1}}, "option 3"),
        ({"padding": "removed"}, "padding 'removed'.*'remove'"),
        ({"backend": []}, "empty list"),
        ({"calibration": ["a text"]}, "calibration has no effect with precision='fp32'"),
        ({"precision": "bf16", "tolerance": 0.99}, "tolerance has no effect with precision='bf16'"),
        ({"precision": "auto", "tolerance": 1.0}, "above 0 and below 1"),
        ({"precision": "auto", "tolerance": 0.0}, "above 0 and below 1"),
    ],
)
def test_rejects_an_invalid_argument(bert, arguments, message):
    with pytest.raises(ValueError, match=message) as caught:
        isorun.Session(bert, **arguments)
    assert isinstance(caught.value, InvalidArgument)


@pytest.mark.parametrize(
    ("arguments", "kind", "message"),
    [
        ({"backend": "ort-cup"}, BackendNotFound, r"'ort-cup'.*'ort-cpu'"),
        ({"backend": "OpenVINO"}, BackendNotFound, r"'openvino'"),
        ({"backend": "reference", "device": "gpu"}, BackendUnavailable, "device 'gpu' .*cpu"),
        ({"backend": "ort-cpu", "options": {"inter_op_threads": 0}}, ValueError, "inter_op_threads"),
        (
            {"backend": "ort-cpu", "options": {"graph_optimization_level": "most"}},
            ValueError,
            "'all'.*'extended'.*'most'",
        ),
        ({"backend": "ort-cpu", "options": {"session_config": 5}}, ValueError, "'session_config'"),
        ({"threads": 0}, ValueError, "threads"),
        ({"backend": 3}, TypeError, "backend .*3"),
        ({"backend": ["ort-cpu", 3]}, TypeError, "list of names"),
        ({"backend": "ort-cpu", "options": ["profile_prefix"]}, TypeError, "options .*list"),
        ({"calibration": "a text", "precision": "int8"}, TypeError, "calibration .*str"),
        ({"calibration": {"input_ids": 1}, "precision": "auto"}, TypeError, "calibration .*dict"),
    ],
)
def test_rejects_a_request(bert, arguments, kind, message):
    with pytest.raises(kind, match=message):
        isorun.Session(bert, **arguments)


@pytest.mark.parametrize("backend", ["ort-cpu", "openvino"])
def test_threads_are_as_requested(bert, backend):
    with isorun.Session(bert, backend=backend, threads=1) as session:
        assert session.provenance.threads == 1
    with isorun.Session(bert, backend=backend) as session:
        assert session.provenance.threads == usable_cores()


def test_a_backend_without_a_thread_setting_rejects_threads(bert):
    with pytest.raises(BackendUnavailable, match="`threads`"):
        isorun.Session(bert, backend="reference", threads=2)
    with isorun.Session(bert, backend=["reference", "ort-cpu"], threads=2) as session:
        assert (session.provenance.backend, session.provenance.threads) == ("ort-cpu", 2)
        assert [name for name, _ in session.provenance.skipped] == ["reference"]


def test_a_backend_without_a_thread_setting_reports_none(bert):
    with isorun.Session(bert, backend="reference") as session:
        assert session.provenance.threads is None
        assert json.loads(json.dumps(session.provenance.as_dict()))["threads"] is None
