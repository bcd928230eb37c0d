"""The ONNX project's backend tests through the adapter: what raw ONNX Runtime passes, ort-cpu passes.

They are marked long: to make them takes longer than to run some.
"""

import unittest
import warnings
from collections import Counter
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import onnx
import pytest
from onnx import helper
from onnx.backend.base import Backend, BackendRep

from isorun.errors import BackendUnavailable, InvalidFeeds
from isorun.integrations import onnx_backend
from isorun_conformance.sample_models import dense

Outcomes = dict[str, str]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> onnx.ModelProto:
    return onnx.load(dense().path(tmp_path_factory.mktemp("models")))


class Either(Backend):
    """The backend that is being asked at the moment: to make the tests takes longer than to run them."""

    chosen: ClassVar[type[Backend]]

    @classmethod
    def prepare(cls, model: onnx.ModelProto, device: str = "CPU", **arguments: Any) -> BackendRep | None:
        return cls.chosen.prepare(model, device, **arguments)


def outcomes(cases: list[unittest.TestCase]) -> Outcomes:
    """What became of each test, by its name: passed, skipped or failed."""
    found: Outcomes = {}
    for case in cases:
        result = unittest.TestResult()
        case.run(result)
        bad = result.failures or result.errors
        found[case.id()] = "failed" if bad else "skipped" if result.skipped else "passed"
    return found


@pytest.mark.long
def test_no_worse_than_the_raw_runtime(tmp_path: Path) -> None:
    import onnxruntime

    with warnings.catch_warnings(), pytest.MonkeyPatch.context() as patch:
        warnings.simplefilter("ignore")  # ONNX computes some expected values by overflowing on purpose
        patch.setenv("ONNX_HOME", str(tmp_path))  # where its tests of whole models write
        from onnx.backend.test import BackendTest
        from onnxruntime.backend.backend import OnnxRuntimeBackend

        groups = BackendTest(Either).exclude("_cuda$").test_cases
        names = {group: unittest.TestLoader().getTestCaseNames(group) for group in groups.values()}
        cases = [group(name) for group, chosen in names.items() for name in chosen if not name.endswith("_cuda")]
        onnxruntime.set_default_logger_severity(4)  # it tells of each test that it fails
        Either.chosen = OnnxRuntimeBackend
        raw = outcomes(cases)
        Either.chosen = onnx_backend.adapter("ort-cpu")
        ours = outcomes(cases)
    assert {name: ours[name] for name in raw if raw[name] == "passed" and ours[name] != "passed"} == {}
    # ONNX Runtime trails ONNX: the rest are operators and types that it does not have yet.
    assert Counter(ours.values())["passed"] > 0.6 * len(cases)


@pytest.mark.parametrize("backend", ["ort-cpu", "openvino", "reference"])
def test_a_model_runs_on_any_backend(model, backend):
    adapter = onnx_backend.adapter(backend)
    x = dense().feeds()["x"]
    (y,) = adapter.run_model(model, [x])
    expected = adapter.prepare(model).run(x)[0]  # one input without a list, as the base class has it
    np.testing.assert_array_equal(y, expected)
    assert y.shape == (4, 256)


def test_an_array_too_many_is_named(model):
    with pytest.raises(InvalidFeeds, match="got 3 arrays"):
        onnx_backend.adapter("ort-cpu").run_model(model, [np.zeros((1, 4), np.float32)] * 3)


def test_a_node_runs_with_outputs_given_or_inferred():
    adapter = onnx_backend.adapter("ort-cpu")
    node = helper.make_node("Add", ["a", "b"], ["c"])
    a, b = np.float32([[1, 2]]), np.float32(3)
    for outputs in (None, [(np.dtype(np.float32), (1, 2))]):
        (c,) = adapter.run_node(node, [a, b], outputs_info=outputs)
        np.testing.assert_array_equal(c, [[4, 5]])
        assert c.dtype == np.float32


def test_devices_are_those_that_the_backend_declares(model):
    adapter = onnx_backend.adapter("ort-cpu")
    assert adapter.supports_device("CPU")
    assert not adapter.supports_device("CUDA")
    assert not adapter.supports_device("CUDA:1")
    with pytest.raises(BackendUnavailable, match="device 'cuda'"):
        adapter.prepare(model, "CUDA")


def test_an_operator_that_the_backend_lacks_is_skipped_with_the_reason():
    node = helper.make_node("Frobnicate", ["x"], ["y"], domain="nowhere")
    x, y = (helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1]) for name in "xy")
    graph = helper.make_graph([node], "g", [x], [y])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("nowhere", 1)]
    with pytest.raises(unittest.SkipTest, match="Frobnicate"):
        onnx_backend.adapter("ort-cpu").prepare(helper.make_model(graph, opset_imports=opsets, ir_version=10))


def test_what_else_goes_wrong_is_no_skip(model):
    with pytest.raises(InvalidFeeds, match="'x' must have size 256 at dimension 1"):
        onnx_backend.adapter("ort-cpu").run_model(model, [np.zeros((4, 3), np.float32)])


def test_arguments_of_the_session_are_handed_on(model):
    adapter = onnx_backend.adapter("reference", precision="fp64")
    (y,) = adapter.run_model(model, [dense().feeds()["x"]])
    assert y.dtype == np.float64
    with pytest.raises(ValueError, match="fp8"):
        adapter.prepare(model, precision="fp8")


def test_what_is_made_is_kept_nowhere(model, cache_dir, tmp_path):
    before = set(cache_dir.rglob("*"))
    onnx_backend.adapter("ort-cpu").run_model(model, [dense().feeds()["x"]])
    assert {path for path in cache_dir.rglob("*") if path.parent.name != "entry-points"} <= before
    onnx_backend.adapter("ort-cpu", cache_dir=tmp_path).run_model(model, [dense().feeds()["x"]])
    assert list(tmp_path.iterdir())
