"""Which backend takes a model, and what is refused."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest

import flaws
import isorun
from isorun.errors import BackendNotFound, BackendUnavailable, InvalidModel
from isorun.plugin import registry
from isorun.system.threads import usable_cores
from isorun.testing import fakes


def test_auto_takes_the_first_of_the_documented_order(bert):
    with isorun.Session(bert) as session:
        assert session.provenance.backend == registry.AUTO_ORDER[0]
        assert session.provenance.passed_over == ()


def test_a_list_is_an_order_of_preference_and_says_why_one_was_passed_over(bert):
    with isorun.Session(bert, backend=["no-such", "ort-cpu", "openvino", "reference"], precision="fp64") as session:
        provenance = session.provenance
    assert (provenance.backend, provenance.precision) == ("reference", "fp64")
    assert [name for name, _ in provenance.passed_over] == ["no-such", "ort-cpu", "openvino"]
    reasons = dict(provenance.passed_over)
    assert "'no-such'" in reasons["no-such"]
    assert "does not compute in 'fp64'. It computes in fp32" in reasons["ort-cpu"]
    assert "skipped" in str(provenance)


@pytest.mark.parametrize(
    ("plugin", "reason"),
    [
        ("Rude", "its availability() raises OSError: the driver is upset"),
        ("SaysTrue", "its availability() must return an isorun.types.Availability, got bool"),
        ("CompilesNothing", "its compile() gives a NoneType, and no isorun.plugin.backend.Executable"),
    ],
)
def test_a_plugin_that_breaks_its_contract_is_passed_over_by_its_name(bert, plugin, reason):
    with fakes.installed(flaws.names()):
        with pytest.raises(isorun.IsorunError, match=re.escape(reason)) as caught:
            isorun.Session(bert, plugin)
        assert "Report it to its authors: flaws.discovery" in str(caught.value)
        with isorun.Session(bert, [plugin, "reference"]) as session:
            ((name, why),) = session.provenance.passed_over
    assert name == plugin
    assert reason in why


def test_none_of_a_list_can(bert):
    with pytest.raises(BackendUnavailable, match="ort-cpu or openvino") as caught:
        isorun.Session(bert, backend=["ort-cpu", "openvino"], precision="fp64")
    assert "  ort-cpu: it does not compute in 'fp64'" in str(caught.value)
    assert "  openvino: it does not compute in 'fp64'" in str(caught.value)
    assert "as asked. Mend one of these:\n  ort-cpu:" in str(caught.value)


def test_a_bad_model_is_no_reason_to_try_another_backend(tmp_path):
    (tmp_path / "bad.onnx").write_bytes(b"nothing like it")
    with pytest.raises(InvalidModel, match="not an ONNX model"):
        isorun.Session(tmp_path / "bad.onnx", backend=["ort-cpu", "openvino"])


@pytest.mark.parametrize(
    ("arguments", "kind", "message"),
    [
        ({"backend": "ort-cup"}, BackendNotFound, r"'ort-cup'.*did you mean 'ort-cpu'\?"),
        ({"backend": []}, ValueError, "empty list"),
        ({"backend": "ort-cpu", "precision": "bf16"}, BackendUnavailable, "does not compute in 'bf16'.*fp32"),
        ({"backend": "openvino", "precision": "fp8"}, BackendUnavailable, "'fp8'.*fp32, bf16"),
        ({"backend": "reference", "device": "gpu"}, BackendUnavailable, "no device 'gpu'.*It runs on cpu"),
        (
            {"backend": "ort-cpu", "options": {"inter_op_thread": 1}},
            BackendUnavailable,
            r"no option 'inter_op_thread'; did you mean 'inter_op_threads'\?",
        ),
        ({"backend": "ort-cpu", "options": {"inter_op_threads": 0}}, BackendUnavailable, "inter_op_threads is 0"),
        (
            {"backend": "ort-cpu", "options": {"graph_optimization_level": "most"}},
            BackendUnavailable,
            "graph_optimization_level 'most'.*all, extended",
        ),
        (
            {"backend": "openvino", "options": {"properties": {"PERFORMANCE_HINTS": "LATENCY"}}},
            BackendUnavailable,
            r"no property 'PERFORMANCE_HINTS'.*'PERFORMANCE_HINT'\?",
        ),
        (
            {"backend": "openvino", "options": {"properties": {"INFERENCE_PRECISION_HINT": "bf16"}}},
            BackendUnavailable,
            "INFERENCE_PRECISION_HINT follows .*precision=",
        ),
        ({"backend": "openvino", "options": {"properties": 5}}, BackendUnavailable, "'properties' is a int.*a mapping"),
        ({"backend": "ort-cpu", "options": {"session_config": 5}}, BackendUnavailable, "'session_config' is a int"),
        ({"backend": "ort-cpu", "options": {"graph_optimization_level": [1]}}, BackendUnavailable, "level .1.*basic"),
        ({"threads": 0}, ValueError, "threads is 0"),
        ({"threads": -1}, ValueError, "threads is -1"),
        ({"threads": 1.5}, ValueError, "threads is 1.5; a run needs a whole number"),
        ({"threads": "2"}, ValueError, "threads is '2'; a run needs a whole number"),
        ({"backend": "OpenVINO"}, BackendNotFound, r"did you mean 'openvino'\?"),
        ({"backend": 3}, TypeError, "backend is a name, a list of names or 'auto'; 3 came"),
        ({"backend": ["ort-cpu", 3]}, TypeError, "a list of names"),
        ({"backend": "ort-cpu", "precision": "FP32"}, BackendUnavailable, r"in 'FP32' \(did you mean 'fp32'\?\)\. It"),
        ({"backend": "ort-cpu", "precision": "bf16"}, BackendUnavailable, "no matrix products in it"),
        ({"backend": "ort-cpu", "options": ["profile_prefix"]}, TypeError, "options is a mapping .* a list came"),
        ({"options": {3: 1}}, BackendUnavailable, "no option 3"),
        ({"device": 0}, BackendUnavailable, "no device 0.*It runs on cpu"),
        ({"device": ""}, BackendUnavailable, "no device ''.*It runs on cpu"),
        ({"calibration": "a text", "precision": "int8"}, TypeError, "calibration is a list .* a str came"),
        ({"calibration": {"input_ids": 1}, "precision": "auto"}, TypeError, "calibration is a list .* a dict came"),
        ({"calibration": ["a text"]}, ValueError, "calibration has no effect with precision='fp32'"),
    ],
)
def test_what_cannot_be_had_is_refused(bert, arguments, kind, message):
    with pytest.raises(kind, match=message):
        isorun.Session(bert, **arguments)


@pytest.mark.parametrize("backend", ["ort-cpu", "openvino"])
def test_threads_are_what_is_asked(bert, backend):
    with isorun.Session(bert, backend=backend, threads=1) as session:
        assert session.provenance.threads == 1
        assert ", 1 thread\n" in str(session.provenance)
    with isorun.Session(bert, backend=backend) as session:
        assert session.provenance.threads == usable_cores()


def test_threads_that_cannot_be_set_are_refused(bert):
    with pytest.raises(BackendUnavailable, match="threads cannot be set, and threads is 2") as caught:
        isorun.Session(bert, backend="reference", threads=2)
    assert "Leave threads out" in caught.value.remedy
    with isorun.Session(bert, backend=["reference", "ort-cpu"], threads=2) as session:
        assert (session.provenance.backend, session.provenance.threads) == ("ort-cpu", 2)
        ((passed, reason),) = session.provenance.passed_over
        assert passed == "reference"
        assert "threads cannot be set" in reason


def test_threads_that_are_not_set_are_not_claimed(bert):
    with isorun.Session(bert, backend="reference") as session:
        assert session.provenance.threads is None
        assert ", threads not set\n" in str(session.provenance)
        assert json.loads(json.dumps(session.provenance.as_dict()))["threads"] is None


HIDDEN = """
import sys
import importlib.abc
hidden = sys.argv[2]

class Hide(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == hidden:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

import isorun
real = __import__("importlib.util").util.find_spec
__import__("importlib.util").util.find_spec = lambda name, package=None: None if name == hidden else real(name, package)
sys.meta_path.insert(0, Hide())
# Its metadata too, or the package would be reported as hollow.
__import__("isorun.plugin.backend").plugin.backend.package_owners = lambda package: []
try:
    isorun.Session(sys.argv[1], backend=sys.argv[3])
except isorun.BackendUnavailable as error:
    print(error)
"""


@pytest.mark.parametrize(
    ("package", "backend", "command"),
    [
        ("onnxruntime", "ort-cpu", "pip install 'onnxruntime'"),
        ("openvino", "openvino", "pip install 'openvino>=2026.0'"),
        ("onnx", "reference", "pip install 'onnx'"),
    ],
)
def test_a_backend_whose_package_is_absent(bert, package, backend, command):
    ran = subprocess.run(
        [sys.executable, "-c", HIDDEN, str(bert), package, backend], capture_output=True, text=True, timeout=60
    )
    assert ran.returncode == 0, ran.stderr
    assert f"Backend {backend!r} cannot be used: the package {package!r} is not installed" in ran.stdout
    assert command in ran.stdout
