"""``isorun.compat`` beside ONNX Runtime's own classes."""

import logging
import queue
import re
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import onnxruntime
import pytest
from onnxruntime.capi import onnxruntime_inference_collection as raw_classes

import exports
import isorun
import isorun.compat as ort
import small_bert
from isorun.compat import providers
from isorun.compat.options import Translated
from isorun.errors import BackendUnavailable, InvalidArgument, InvalidFeeds, IsorunError

CPU, OPENVINO = "CPUExecutionProvider", "OpenVINOExecutionProvider"
MASK = np.array([[1, 1, 1, 1], [1, 1, 0, 0], [0, 1, 0, 1], [0, 0, 0, 0]])
FEEDS = small_bert.feeds(MASK)
TYPES = """
<ir_version: 8, opset_import: ["" : 18], producer_name: "writer", domain: "some.domain", model_version: 12,
 doc_string: "about the model", metadata_props: ["key": "value"]>
graph_name (float[N,3] x, seq(float[K]) s, int64 k, float u, float[?,M] q) => (float[N,3] y, float[L] t)
{ y = Relu(x)  t = SequenceAt(s, k) }
"""
FIELDS = ("producer_name", "graph_name", "domain", "description", "graph_description", "version", "custom_metadata_map")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return small_bert.write(tmp_path_factory.mktemp("models") / "bert.onnx")


@pytest.fixture(scope="module")
def raw(model):
    return raw_classes.InferenceSession(model, providers=[CPU])


@pytest.fixture(scope="module")
def session(model):
    with ort.InferenceSession(model, providers=[CPU]) as opened:
        yield opened


def of_types():
    made = onnx.parser.parse_model(TYPES)
    made.graph.doc_string = "about the graph"
    return made.SerializeToString()


def described(session):
    arguments = [*session.get_inputs(), *session.get_outputs(), *session.get_overridable_initializers()]
    meta = session.get_modelmeta()
    return [str(argument) for argument in arguments], {field: getattr(meta, field) for field in FIELDS}


SAMPLES = sorted(exports.manifest())[:: max(1, len(exports.manifest()) // 6)]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("label", ["types", *SAMPLES])
def test_descriptions_equal_those_of_onnxruntime(label):
    content = of_types() if label == "types" else exports.content(label)
    raw = raw_classes.InferenceSession(content, providers=[CPU])
    with ort.InferenceSession(content) as session:
        assert described(session) == described(raw)
        assert (session.get_providers(), session.get_provider_options()) == ([CPU], {CPU: {}})
        assert session._model_path is None
        assert len({*session.get_inputs(), *session.get_inputs()}) == len(session.get_inputs())


def test_padded_positions_equal_those_of_onnxruntime(session, raw):
    for ours, theirs in zip(session.run(None, FEEDS), raw.run(None, FEEDS), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-5)


def test_ort_values_and_run_options(session, raw):
    (expected,) = raw.run(["pooler_output"], FEEDS)
    values = {name: onnxruntime.OrtValue.ortvalue_from_numpy(array) for name, array in FEEDS.items()}
    options = onnxruntime.RunOptions()
    options.log_severity_level = 3
    (array,) = session.run(["pooler_output"], values, options)
    (value,) = session.run_with_ort_values(["pooler_output"], values, options)
    assert isinstance(value, onnxruntime.OrtValue)
    np.testing.assert_allclose(array, expected, rtol=0, atol=1e-5)
    np.testing.assert_array_equal(value.numpy(), array)
    done: queue.Queue = queue.Queue()
    session.run_async(["pooler_output"], values, lambda *arguments: done.put(arguments), "mine", options)
    outputs, user_data, error = done.get(timeout=20)
    assert (user_data, error) == ("mine", "")
    np.testing.assert_array_equal(outputs[0], array)
    options.terminate = True
    with pytest.raises(InvalidArgument, match="terminate"):
        session.run(None, values, options)
    with pytest.raises(TypeError, match="RunOptions, got dict"):
        session.run(None, values, {})


def test_bindings(session, raw):
    hidden, pooled = raw.run(None, FEEDS)
    target = onnxruntime.OrtValue.ortvalue_from_shape_and_type(pooled.shape, np.float32)
    for make in (lambda: ort.IOBinding(session), session.io_binding):
        binding = make()
        for name, array in FEEDS.items():
            binding.bind_ortvalue_input(name, onnxruntime.OrtValue.ortvalue_from_numpy(array))
        binding.bind_output("last_hidden_state", "cpu", 0, onnx.TensorProto.FLOAT, hidden.shape, hidden.ctypes.data)
        binding.bind_ortvalue_output("pooler_output", target)
        expected, hidden[:] = hidden.copy(), 0
        session.run_with_iobinding(binding, onnxruntime.RunOptions())
        np.testing.assert_allclose(hidden, expected, rtol=0, atol=1e-5)
        np.testing.assert_allclose(target.numpy(), pooled, rtol=0, atol=1e-5)
        outputs = binding.get_outputs()
        assert all(isinstance(output, onnxruntime.OrtValue) for output in outputs)
        np.testing.assert_array_equal(outputs[1].numpy(), target.numpy())
    assert type(ort.IOBinding(raw)) is raw_classes.IOBinding


@pytest.mark.parametrize("backend", ["ort-cpu", "openvino", "reference"])
def test_arrays_outlast_the_values_that_they_come_from(backend: str) -> None:
    """As in ONNX Runtime; memory that is freed is soon other arrays'."""
    text = '<ir_version: 8, opset_import: ["" : 17]> g (float[N] x) => (float[N] y) { y = Add (x, x) }'
    with ort.InferenceSession(onnx.parser.parse_model(text).SerializeToString(), backend=backend) as session:

        def bound(x: np.ndarray) -> np.ndarray:
            binding = session.io_binding()
            binding.bind_cpu_input("x", x)
            binding.bind_output("y")
            session.run_with_iobinding(binding)
            return binding.get_outputs()[0].numpy()

        def run(x: np.ndarray) -> np.ndarray:
            return session.run_with_ort_values(["y"], {"x": onnxruntime.OrtValue.ortvalue_from_numpy(x)})[0].numpy()

        def bound_to_a_value(x: np.ndarray) -> np.ndarray:
            binding = session.io_binding()
            binding.bind_cpu_input("x", x)
            binding.bind_ortvalue_output("y", onnxruntime.OrtValue.ortvalue_from_shape_and_type([6], np.float32))
            session.run_with_iobinding(binding)
            return binding.get_outputs()[0].numpy()

        for double in (bound, run, bound_to_a_value):
            kept = [double(np.full(6, number, np.float32)) for number in range(8)]
            others = [np.full(6, 777, np.float32) for _ in range(64)]
            assert [set(array) for array in kept] == [{2 * number} for number in range(8)]
            del others


def test_values_that_are_no_tensors():
    content = of_types()
    feeds = {"x": np.zeros((1, 3), np.float32), "u": np.float32(1), "q": np.zeros((1, 1), np.float32), "k": np.int64(1)}
    with ort.InferenceSession(content) as session:
        (result,) = session.run(["t"], {**feeds, "s": [np.zeros(2, np.float32), np.ones(2, np.float32)]})
        np.testing.assert_array_equal(result, [1, 1])
    strings = '<ir_version: 8, opset_import: ["" : 18]> g (string[N] x) => (string[N] y) { y = Identity(x) }'
    session = ort.InferenceSession(onnx.parser.parse_model(strings).SerializeToString())
    with session, pytest.raises(InvalidFeeds, match=r"'y' .object. cannot be an OrtValue"):
        session.run_with_ort_values(None, {"x": np.array(["a"], object)})


def options_with(**attributes):
    options = ort.SessionOptions()
    for name, value in attributes.items():
        if isinstance(value, tuple):
            getattr(options, name)(*value)
        else:
            setattr(options, name, value)
    return options


def test_session_options_reach_the_runtime(model, tmp_path):
    options = options_with(
        intra_op_num_threads=1,
        inter_op_num_threads=2,
        execution_mode=ort.ExecutionMode.ORT_PARALLEL,
        graph_optimization_level=ort.GraphOptimizationLevel.ORT_ENABLE_BASIC,
        use_deterministic_compute=True,
        enable_profiling=True,
        profile_file_prefix=str(tmp_path / "profile"),
        add_session_config_entry=("session.disable_prepacking", "1"),
    )
    with ort.InferenceSession(model, options) as session:
        assert session.get_session_options() is options
        assert session.provenance.threads == 1
        made = session._model._main.executable._session.get_session_options()
    assert (made.intra_op_num_threads, made.inter_op_num_threads) == (1, 2)
    assert made.execution_mode == ort.ExecutionMode.ORT_PARALLEL
    assert made.graph_optimization_level == ort.GraphOptimizationLevel.ORT_ENABLE_BASIC
    assert made.use_deterministic_compute
    assert made.get_session_config_entry("session.disable_prepacking") == "1"
    assert list(tmp_path.glob("profile*.json"))


def test_options_without_a_meaning_are_ignored_with_one_line(model, caplog):
    options = options_with(enable_mem_pattern=False, logid="mine", add_free_dimension_override_by_name=("batch", 4))
    with caplog.at_level(logging.INFO, "isorun"):
        ort.InferenceSession(model, options, [CPU], enable_fallback=1).close()
    lines = [message for message in caplog.messages if "ignored" in message]
    assert len(lines) == 1
    for name in ("enable_mem_pattern", "logid", "add_free_dimension_override_by_name", "enable_fallback"):
        assert name in lines[0]


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"optimized_model_filepath": "there.onnx"}, "isorun fuse"),
        (
            {"add_initializer": ("w", onnxruntime.OrtValue.ortvalue_from_numpy(np.zeros(1)))},
            "add_initializer",
        ),
        (
            {"add_session_config_entry": ("session.model_external_initializers_file_folder_path", "x")},
            "from its folder",
        ),
    ],
)
def test_options_that_change_results_are_refused(options, what, model):
    with pytest.raises(InvalidArgument, match=what):
        ort.InferenceSession(model, options_with(**options))


@pytest.mark.parametrize("providers", [None, [CPU], [(CPU, {})], ["AzureExecutionProvider"]])
def test_providers_that_are_the_cpu(providers, model):
    with ort.InferenceSession(model, None, providers) as session:
        assert session.provenance.backend == "ort-cpu"
        assert session.get_providers() == [CPU]


def test_an_unavailable_provider_is_skipped_only_for_a_later_one(model, caplog):
    with ort.InferenceSession(model, providers=["CUDAExecutionProvider", CPU]) as session:
        assert session.get_providers() == [CPU]
    assert "skipped CUDAExecutionProvider" in caplog.text
    with pytest.raises(BackendUnavailable, match="ort-cuda"):
        ort.InferenceSession(model, providers=["CUDAExecutionProvider"], provider_options=[{"device_id": 1}])
    with pytest.raises(BackendUnavailable, match=r"'ort-ep:dml'.* has no DmlExecutionProvider .*onnxruntime-directml"):
        ort.InferenceSession(model, providers=["DmlExecutionProvider"])
    with pytest.raises(InvalidArgument, match=r"no backend for MyGraphXExecutionProvider; did you mean 'MIGraphX"):
        ort.InferenceSession(model, providers=["MyGraphXExecutionProvider"])
    with pytest.raises(InvalidArgument, match=r"a list such as \['CPUExecutionProvider'\]"):
        ort.InferenceSession(model, providers=CPU)


@pytest.mark.parametrize("device", ["AUTO:CPU", "HETERO:CPU"])
def test_devices_of_openvino(device, model, raw):
    options = {"device_type": device, "precision": "FP32", "num_of_threads": "1"}
    with ort.InferenceSession(model, providers=[(OPENVINO, options)]) as session:
        assert (session.provenance.backend, session.provenance.threads) == ("openvino", 1)
        assert session.get_providers() == [OPENVINO, CPU]
        np.testing.assert_allclose(session.run(None, FEEDS)[0], raw.run(None, FEEDS)[0], rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("options", "backend", "expected"),
    [
        ({}, "ort-openvino", ("cpu", "fp32")),
        ({"device_type": "CPU_FP32"}, "ort-openvino", ("cpu", "fp32")),
        ({"device_type": "GPU"}, "openvino", ("gpu", "fp16")),
        ({"device_type": "GPU.1", "precision": "FP32"}, "openvino", ("gpu.1", "fp32")),
        ({"device_type": "GPU.0_FP32"}, "openvino", ("gpu.0", "fp32")),
        ({"device_type": "NPU"}, "openvino", ("npu", "fp16")),
        ({"device_type": "AUTO:GPU,CPU"}, "openvino", ("auto:gpu,cpu", "fp32")),
        ({"device_type": "HETERO:NPU,GPU"}, "openvino", ("hetero:npu,gpu", "fp16")),
    ],
)
def test_what_a_device_type_becomes(options, backend, expected):
    (candidate,) = providers.candidates([(OPENVINO, options)], None, Translated(None, {}))
    assert candidate.backend == backend
    assert (candidate.settings["device"], candidate.settings["precision"]) == expected


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"device_type": "MULTI:GPU,CPU"}, InvalidArgument, "'multi:gpu,cpu'.*auto:DEVICES"),
        ({"device_type": "GPU.77"}, BackendUnavailable, r"no device 'gpu\.77'.*available: "),
        ({"device_type": "GPU", "precision": "ACCURACY"}, InvalidArgument, "'precision': 'ACCURACY'"),
        ({"device_type": "GPU", "context": "1"}, InvalidArgument, "'context': '1'"),
    ],
)
def test_rejects_options_of_openvino(options, error, message, model):
    with pytest.raises(error, match=message):
        ort.InferenceSession(model, providers=[(OPENVINO, options)])


def test_arguments_of_isorun(model, raw):
    with ort.InferenceSession(model, backend="openvino", padding="auto") as session:
        assert session.provenance.backend == "openvino"
        assert session.get_providers() == ["OpenVINOExecutionProvider", CPU]
        hidden, _ = session.run(None, FEEDS)
    expected, _ = raw.run(None, FEEDS)
    np.testing.assert_allclose(hidden, expected * MASK[..., None], rtol=0, atol=1e-5)
    with pytest.raises(TypeError, match="paddings"):
        ort.InferenceSession(model, paddings="auto")


def test_set_providers_opens_again(model):
    with ort.InferenceSession(model, backend="ort-cpu") as session:
        (first,) = session.run(["pooler_output"], FEEDS)
        session.submit(None, FEEDS).result(20)
        session.set_providers([CPU])
        np.testing.assert_array_equal(session.run(["pooler_output"], FEEDS)[0], first)
        np.testing.assert_array_equal(session.submit(["pooler_output"], FEEDS).result(20)[0], first)


def test_set_providers_of_a_subclass(model):
    class Client(ort.InferenceSession):
        def __init__(self, path):
            super().__init__(path, providers=[CPU])
            self.label = "mine"

    with Client(model) as session:
        session.set_providers([CPU])
        assert session.label == "mine"
        assert len(session.run(None, FEEDS)) == len(session.get_outputs())
        with pytest.raises((ValueError, isorun.IsorunError)):
            session.set_providers(["NoExecutionProvider"])
        assert [item.name for item in session.get_inputs()]
        with pytest.raises(isorun.SessionClosed):
            session.run(None, FEEDS)


Early = onnxruntime.InferenceSession  # as a library that was imported before install()


def test_install_has_no_model_for_all_sessions(model):
    with pytest.raises(TypeError, match="model of its own"):
        ort.install(model=model)


def test_install_is_reversible(model, raw):
    with ort.install(padding="auto") as installation:
        for cls in (onnxruntime.InferenceSession, Early):
            session = cls(str(model), onnxruntime.SessionOptions(), providers=[CPU])
            assert isinstance(session, isorun.Session)
            assert isinstance(session, ort.InferenceSession)
            # The backend's own session is ONNX Runtime's.
            assert session.provenance.backend == "ort-cpu"
            assert not np.any(session.run(None, FEEDS)[0][MASK == 0])  # padding="auto"
            assert isinstance(onnxruntime.IOBinding(session), isorun.IOBinding)
            session.close()
        with pytest.raises(IsorunError, match="already installed"):
            ort.install()
    installation.uninstall()
    assert Early is onnxruntime.InferenceSession is raw_classes.InferenceSession
    assert onnxruntime.SessionOptions is raw_classes.C.SessionOptions
    assert ort.InferenceSession is not raw_classes.InferenceSession
    with pytest.raises(TypeError, match="paddings"):
        ort.install(paddings="auto")


def test_other_names_are_those_of_onnxruntime():
    assert ort.get_available_providers is onnxruntime.get_available_providers
    assert ort.OrtValue is onnxruntime.OrtValue
    with pytest.raises(AttributeError, match="Inference"):
        _ = ort.Inference


def test_options_of_a_session_without_options_are_of_the_own_class(model: onnx.ModelProto) -> None:
    with ort.InferenceSession(model) as session:
        assert isinstance(session.get_session_options(), ort.SessionOptions)


def test_docs_name_what_is_missing() -> None:
    docs = (Path(__file__).parents[3] / "docs" / "existing-code.md").read_text(encoding="utf-8")
    in_groups = r"tuning_results|memory_infos|epdevices|captured?_graph|ortvalue"
    for original, ours in (
        (raw_classes.InferenceSession, ort.InferenceSession),
        (raw_classes.IOBinding, ort.IOBinding),
    ):
        public = {name for name in dir(original) if not name.startswith("_")}
        missing = public - set(dir(ours))
        assert [name for name in missing if name not in docs and not re.search(in_groups, name)] == []
