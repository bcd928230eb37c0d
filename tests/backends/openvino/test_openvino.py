"""What sets openvino apart; the rest is proved by the conformance suite."""

import array
import os
import sys

import numpy as np
import onnx
import openvino
import pytest

import isorun
import programs
import tiny
from isorun.errors import BackendFailed, BackendUnavailable, InvalidOption
from isorun.models import lowering
from isorun.models import source as models
from isorun.system.cache import Cache
from isorun.system.process_usage import resident_mib, return_free_memory
from isorun.types import CompileConfig
from isorun_backends.openvino.backend import OpenVINO
from onnx_text import graph

HAS_BF16 = "BF16" in openvino.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")


ON_ONE_CORE = """
import os
import sys
import isorun

os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
for threads in (1, 2, 4):
    for device in ("cpu", "hetero:cpu"):
        with isorun.Session(sys.argv[1], "openvino", device=device, threads=threads) as session:
            session.run(None, {"x": [1.0, 1.0, 1.0], "y": [1.0, 1.0, 1.0]})
            try:
                session.run(None, {"x": [1.0, 1.0, 1.0], "y": [1.0, 1.0, 1.0, 1.0]})
            except isorun.BackendFailed:
                print(device, threads)
"""


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system has no affinities")
def test_errors_of_kernels_are_raised_on_one_core(tmp_path):
    """Whatever number of threads was requested, OpenVINO has one there, and its synchronous call loses errors."""
    path = tmp_path / "sum.onnx"
    onnx.save(graph("g (float[N] x, float[M] y) => (float[K] z) { z = Add(x, y) }"), path)
    expected = [f"{device} {threads}" for threads in (1, 2, 4) for device in ("cpu", "hetero:cpu")]
    assert programs.printed(ON_ONE_CORE, path).splitlines() == expected


@pytest.mark.skipif(HAS_BF16, reason="this processor has bf16 arithmetic")
def test_rejects_bf16_without_hardware_support(bert):
    with pytest.raises(isorun.BackendUnavailable, match="no bf16 arithmetic"):
        isorun.Session(bert, backend="openvino", precision="bf16")


@pytest.mark.skipif(not HAS_BF16, reason="this processor has no bf16 arithmetic")
@pytest.mark.parametrize(
    ("processor", "flags", "expected"),
    [
        ("Intel(R) Xeon(R)", {"avx512_bf16"}, "fp32+int8"),
        ("Intel(R) Xeon(R)", {"avx512_bf16", "amx_bf16"}, "bf16+int8"),
        ("AMD EPYC", {"avx512_bf16"}, "bf16+int8"),
    ],
)
def test_the_rest_of_int8_is_in_the_faster_precision(bert, monkeypatch, processor, flags, expected):
    monkeypatch.setattr("isorun_backends.openvino.devices.cpu_name", lambda: processor)
    monkeypatch.setattr("isorun_backends.openvino.devices.cpu_flags", lambda: frozenset(flags))
    samples = [tiny.feeds(64, 12) for _ in range(6)]
    with isorun.Session(bert, "openvino", precision="int8", padding="keep", calibration=samples) as session:
        session.run(None, tiny.feeds())
        assert session.provenance.precision == expected


@pytest.mark.parametrize(
    ("properties", "message"),
    [
        ({"PERFORMANCE_HINTS": "LATENCY"}, "did you mean 'PERFORMANCE_HINT'"),
        ({"FULL_DEVICE_NAME": "x"}, "FULL_DEVICE_NAME"),
        ({"INFERENCE_NUM_THREADS": 1}, "threads="),
        (["PERFORMANCE_HINT"], "a mapping"),
    ],
)
def test_rejects_invalid_properties(bert, properties, message):
    with pytest.raises(InvalidOption, match=message):
        isorun.Session(bert, backend="openvino", options={"properties": properties})


def test_properties_reach_the_runtime(bert):
    with pytest.raises(BackendFailed, match="PERFORMANCE_HINT"):
        isorun.Session(bert, backend="openvino", options={"properties": {"PERFORMANCE_HINT": "NONSENSE"}})


def test_no_feed_is_copied(bert):
    import tracemalloc

    feeds = tiny.feeds(2048, tiny.POSITIONS)
    with isorun.Session(bert, backend="openvino", threads=2, padding="keep") as session:
        session.run(["pooler_output"], tiny.feeds())
        tracemalloc.start()
        try:
            result = session.run(["pooler_output"], feeds)[0]
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert np.isfinite(result).all()
    assert peak < feeds["input_ids"].nbytes


@pytest.mark.parametrize("size", ["N", "3"])
def test_an_input_that_is_also_an_output(size):
    """OpenVINO treats the two as one tensor, and does not write to the output's memory."""
    x, fixed = np.arange(3, dtype=np.float32), f"float[{size}]"
    with isorun.Session(graph(f"g ({fixed} x) => ({fixed} x, {fixed} y) {{ y = Neg (x) }}"), "openvino") as session:
        for _ in range(2):
            same, negative = session.run(None, {"x": x})
            np.testing.assert_array_equal(same, x)
            np.testing.assert_array_equal(negative, -x)
        same[0] = 9
        assert x[0] == 0, "the result is the caller's own"
        binding = session.io_binding()
        binding.bind_cpu_input("x", x)
        memory = np.full(3, 7, np.float32)
        binding.bind_output("x", element_type=np.float32, shape=(3,), buffer_ptr=memory.ctypes.data)
        binding.bind_output("y")
        session.run_with_iobinding(binding)
        np.testing.assert_array_equal(memory, x)
        x[1] = 5
        session.run_with_iobinding(binding)
        np.testing.assert_array_equal(memory, x)
        np.testing.assert_array_equal(binding.copy_outputs_to_cpu()[1], -x)


@pytest.mark.parametrize("operator", ["Dropout (x)", "Sum (x)", "Max (x)"])
def test_an_input_that_openvino_renames(operator):
    """OpenVINO removes an operator without effect, and replaces the input's name by its output's."""
    model = graph(f"g (float[N] w, float[N] x) => (float[N] z, float[N] y) {{ y = {operator}  z = Sub (y, w) }}")
    feeds = {"x": np.arange(3, dtype=np.float32), "w": np.ones(3, np.float32)}
    with isorun.Session(model, "openvino") as session:
        z, y = session.run(None, feeds)
        np.testing.assert_array_equal(y, feeds["x"])
        np.testing.assert_array_equal(z, feeds["x"] - 1)


def test_failures_name_the_backend_as_requested(tmp_path):
    cache = Cache(tmp_path)
    onnx.save(graph("g (float[N] x, float[M] y) => (float[K] z) { z = Add (x, y) }"), tmp_path / "add.onnx")
    lowered = lowering.ModelGraphs(models.open_model(tmp_path / "add.onnx", cache), cache).lower(("primitive",))
    executable = OpenVINO("renamed").compile(lowered, CompileConfig())
    feeds = {"x": np.ones(2, np.float32), "y": np.ones(3, np.float32)}
    with pytest.raises(BackendFailed, match=r"^renamed"):
        executable.run(None, feeds)
    binding = executable.bind(feeds, {"z": None})
    with pytest.raises(BackendFailed, match=r"^renamed"):
        binding.run()


@pytest.mark.parametrize(("kind", "number"), [("bfloat16", 16), ("int4", 22), ("uint4", 21)])
def test_rejects_an_output_type_that_numpy_lacks(kind, number):
    model = graph(f"agraph (float[n] x) => (float[n] y, {kind}[n] z) {{ y = Neg(x) z = Cast<to={number}>(x) }}")
    model.opset_import[0].version = 21
    with pytest.raises(isorun.UnsupportedModel, match=rf"'z'.*{kind}"):
        isorun.Session(model, "openvino")
    x = np.array([1.5, -2], np.float32)
    with isorun.Session(model, "openvino", outputs=["y"]) as session:
        np.testing.assert_array_equal(session.run(None, {"x": x})[0], -x)


@pytest.mark.parametrize(
    ("text", "operator", "reason"),
    [
        ("g (float[N, N] x) => (float z) { z = Det (x) }", "Det", "converted"),
        (
            "g (float[1, N, 1] x, int64 s) => (float[1, A, B, 2] z) { z = STFT <onesided = 0> (x, s, , s) }",
            "STFT",
            "static",
        ),
        (
            "g (float[N] x, int64[R] s) => (float[M] z) { y = Reshape (x, s) z = Flatten (y) }",
            "Reshape",
            "dynamic rank",
        ),
    ],
)
def test_rejects_operators_that_openvino_lacks_or_cannot_convert(text, operator, reason):
    with pytest.raises(isorun.UnsupportedModel, match=reason) as caught:
        isorun.Session(graph(text), "openvino")
    assert caught.value.operators == (operator,)


@pytest.mark.parametrize("code", "qQ")
def test_accepts_both_of_numpys_64_bit_integer_types(code):
    kind = np.dtype(code).name
    model = graph(f"agraph ({kind}[n] x) => ({kind}[n] y) {{ y = Mul(x, x) }}")
    x = np.asarray(array.array(code, [1, 2, 3]))
    assert x.dtype.char == code
    with isorun.Session(model, "openvino") as session:
        for feed in (x, np.repeat(x, 2)[::2]):
            np.testing.assert_array_equal(session.run(None, {"x": feed})[0], [1, 4, 9])
        binding, memory = session.io_binding(), np.empty_like(x)
        binding.bind_cpu_input("x", x)
        binding.bind_output("y", element_type=x.dtype, shape=memory.shape, buffer_ptr=memory.ctypes.data)
        session.run_with_iobinding(binding)
        np.testing.assert_array_equal(memory, [1, 4, 9])


@pytest.mark.parametrize("kind", ["int64", "uint64", "uint32"])
def test_rejects_feeds_beyond_32_bits(kind):
    """OpenVINO reads the lower 32 bits."""
    model = graph(f"g ({kind}[N] x) => ({kind}[N] y) {{ y = Identity (x) }}")
    largest = 2**31 - 1
    with isorun.Session(model, "openvino") as session:
        np.testing.assert_array_equal(session.run(None, {"x": np.array([0, largest], kind)})[0], [0, largest])
        assert session.run(None, {"x": np.array([], kind)})[0].size == 0
        with pytest.raises(isorun.InvalidFeeds, match=r"'x' has numbers outside \[-2147483648, 2147483647\]"):
            session.run(None, {"x": np.array([0, largest + 1], kind)})
        binding = session.io_binding()
        binding.bind_cpu_input("x", np.array([largest + 1], kind))
        binding.bind_output("y")
        with pytest.raises(isorun.InvalidFeeds, match="'x'"):
            session.run_with_iobinding(binding)


def test_negative_int64_feeds_beyond_32_bits():
    model = graph("g (int64[N] x) => (int64[N] y) { y = Identity (x) }")
    with isorun.Session(model, "openvino") as session:
        np.testing.assert_array_equal(session.run(None, {"x": np.array([-(2**31)])})[0], [-(2**31)])
        with pytest.raises(isorun.InvalidFeeds, match="'x'"):
            session.run(None, {"x": np.array([-(2**31) - 1])})


@pytest.mark.parametrize(
    "text",
    [
        "g (float[N] x) => (float[M] y) <int64[1] s = {1}, int64[1] e = {9223372036854775807}> { y = Slice (x, s, e) }",
        "g (float[N] x) => (float[M] y) <int64[1] s = {1}, int64[1] e = {4294967296}> { y = Slice (x, s, e) }",
        "g (float[N] x) => (float[N] y) <int64 c = {8589934592}> { f = Cast <to = 1> (c) y = Add (x, f) }",
    ],
)
def test_harmless_constants_beyond_32_bits_run(text):
    x = np.arange(4, dtype=np.float32)
    with isorun.Session(graph(text), "openvino") as session, isorun.Session(graph(text), "ort-cpu") as reference:
        np.testing.assert_array_equal(session.run(None, {"x": x})[0], reference.run(None, {"x": x})[0])


@pytest.mark.sampled(5)
@pytest.mark.parametrize("keepdims", [0, 1])
@pytest.mark.parametrize("axes", [[0], [-1], [0, 2]])
@pytest.mark.parametrize("operator", ["ReduceL1", "ReduceLogSum", "ReduceLogSumExp"])
def test_reductions_with_an_axes_attribute(operator, axes, keepdims):
    rank = 3 if keepdims else 3 - len(axes)
    sizes = ", ".join(f"s{axis}" for axis in range(rank))
    text = f"g (float[a, b, c] x) => (float[{sizes}] y) {{ y = {operator} <axes = {axes}, keepdims = {keepdims}> (x) }}"
    model = graph(text)
    model.opset_import[0].version = 13
    x = np.random.default_rng(0).uniform(1, 200, (2, 3, 4)).astype(np.float32)
    with isorun.Session(model, "openvino") as session, isorun.Session(model, "ort-cpu") as reference:
        np.testing.assert_allclose(session.run(None, {"x": x})[0], reference.run(None, {"x": x})[0], rtol=1e-6)


def test_an_import_that_fails_without_a_home_names_the_remedy(tmp_path, monkeypatch):
    class NoHome:
        def find_spec(self, name, path=None, target=None):
            if name == "openvino":
                raise RuntimeError("Could not determine home directory.")

    model = tmp_path / "m.onnx"
    onnx.save(graph("agraph (float[1] x) => (float[1] y) { y = Relu (x) }"), model)
    monkeypatch.delitem(sys.modules, "openvino")
    monkeypatch.setattr(sys, "meta_path", [NoHome(), *sys.meta_path])
    lowered = lowering.ModelGraphs(models.open_model(model, Cache(tmp_path)), Cache(tmp_path)).lower(("onnx",))
    with pytest.raises(BackendUnavailable, match=r"importing openvino failed: Could not .* Set HOME to a folder\.$"):
        OpenVINO("openvino").compile(lowered, CompileConfig("fp32", "cpu", 1))


def test_kernels_of_past_lengths_are_released(bert):
    samples = [tiny.feeds(64, 12) for _ in range(6)]
    shapes = [(batch, length) for batch in range(1, 9) for length in range(1, tiny.POSITIONS + 1)]
    with isorun.Session(bert, "openvino", precision="int8", padding="keep", calibration=samples) as session:
        sizes = []
        for first in range(4):
            for shape in shapes[first::4]:
                session.run(None, tiny.feeds(*shape))
            return_free_memory()
            sizes.append(resident_mib())
    assert sizes[3] - sizes[2] < 20  # 33 without a limit


def test_closed_sessions_hold_no_memory(tmp_path):
    weights = np.random.default_rng(0).standard_normal((2048, 4096), np.float32)  # 32 MiB
    model = graph("agraph (float[n, 2048] x, float[2048, 4096] w) => (float[n, 4096] y) { y = MatMul (x, w) }")
    model.graph.initializer.append(onnx.numpy_helper.from_array(weights, "w"))
    del model.graph.input[1]
    sizes = []
    for _ in range(2):  # OpenVINO keeps some memory of a first session for the next
        session = isorun.Session(model, "openvino")
        session.run(None, {"x": np.ones((1, 2048), np.float32)})
        sizes.append(resident_mib())
        session.close()
        return_free_memory()
        sizes.append(resident_mib())
    assert sizes[2] - sizes[3] > 24


@pytest.mark.parametrize("threshold", [0, 0.25, 1 / 3, 0.5, 1])
def test_boxes_that_overlap_by_the_threshold_are_kept(threshold):
    model = graph(
        "g (float[1, N, 4] boxes, float[1, 1, N] scores, float[1] t) => (int64[K, 3] y) <int64[1] n = {9}> "
        "{ y = NonMaxSuppression (boxes, scores, n, t) }"
    )
    boxes = np.array([[[0, 0, 1, width] for width in (1, 1, 2, 3, 4)] + [[5, 5, 6, 6]]], np.float32)
    scores = np.linspace(1, 0.5, 6, dtype=np.float32)[None, None]
    for order in (slice(None), slice(None, None, -1)):
        feeds = {"boxes": boxes[:, order], "scores": scores, "t": np.array([threshold], np.float32)}
        results = [isorun.Session(model, name).run(None, feeds)[0] for name in ("openvino", "reference")]
        np.testing.assert_array_equal(*results)
