"""Sessions on every backend, called as people call ``onnxruntime.InferenceSession``."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest

import backends
import isorun
import numpy_bert
import tiny
from isorun import registry
from isorun.cache import Cache
from isorun.errors import (
    BackendFailed,
    BackendNotFound,
    BackendUnavailable,
    InvalidFeeds,
    InvalidModel,
    IsorunError,
    UnsupportedModel,
)
from isorun.threads import usable_cores

BACKENDS = ("ort-cpu", "openvino", "reference")
SHAPES = [(1, 1), (1, 7), (2, 5), (3, 9), (1, tiny.POSITIONS), (4, 16)]


@pytest.fixture(scope="module", params=BACKENDS)
def session(request, bert):
    with isorun.Session(bert, backend=request.param, threads=backends.threads(request.param, 1)) as opened:
        yield opened


def graph(text: str) -> onnx.ModelProto:
    """A model from ONNX's text form, without the first line, which is the same everywhere."""
    return onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : 17]>\n{text}')


# Results


@pytest.mark.parametrize("kind", tiny.MASKS)
def test_every_backend_computes_the_bert(session, kind):
    feeds = tiny.feeds(3, 9, kind=kind)
    expected = numpy_bert.run(tiny.CONFIG, tiny.weights(), feeds)
    expected["last_hidden_state"] = expected["last_hidden_state"] * (feeds["attention_mask"] != 0)[..., None]
    outputs = session.run(None, feeds)
    for found, (name, array) in zip(outputs, expected.items(), strict=True):
        assert (type(found), found.dtype) == (np.ndarray, np.float32)
        np.testing.assert_allclose(found, array, rtol=0, atol=2e-5, err_msg=name)


@pytest.mark.parametrize("shape", SHAPES)
def test_shapes_change_from_run_to_run(session, shape):
    feeds = tiny.feeds(*shape)
    hidden, pooled = session.run(None, feeds)
    assert (hidden.shape, pooled.shape) == ((*shape, tiny.WIDTH), (shape[0], tiny.WIDTH))


def test_outputs_by_name_and_in_that_order(session):
    feeds = tiny.feeds()
    hidden, pooled = session.run(None, feeds)
    np.testing.assert_array_equal(session.run(["pooler_output"], feeds)[0], pooled)
    both = session.run(["pooler_output", "last_hidden_state"], feeds)
    np.testing.assert_array_equal(both[0], pooled)
    np.testing.assert_array_equal(both[1], hidden)
    assert len(session.run([], feeds)) == 2, "as in onnxruntime, no names are all names"


def test_results_are_the_callers(session):
    first = session.run(None, tiny.feeds(seed=1))
    kept = [array.copy() for array in first]
    for seed in range(5):
        for array in session.run(None, tiny.feeds(seed=seed + 2)):
            assert not any(np.shares_memory(array, other) for other in first)
    for array, copy in zip(first, kept, strict=True):
        np.testing.assert_array_equal(array, copy)
        array[...] = 0  # and may be written to
    np.testing.assert_array_equal(session.run(None, tiny.feeds(seed=1))[0], kept[0])


def test_results_outlive_the_session(bert, any_backend):
    with isorun.Session(bert, backend=any_backend) as opened:
        outputs = opened.run(None, tiny.feeds())
        kept = [array.copy() for array in outputs]
    del opened
    for array, copy in zip(outputs, kept, strict=True):
        np.testing.assert_array_equal(array, copy)


def test_feeds_stay_as_they_were(session):
    feeds = tiny.feeds()
    before = {name: array.copy() for name, array in feeds.items()}
    session.run(None, feeds)
    for name, array in feeds.items():
        np.testing.assert_array_equal(array, before[name])
    assert list(feeds) == list(before)


@pytest.fixture(params=BACKENDS)
def any_backend(request):
    return request.param


def read_only(array):
    array = array.copy()
    array.flags.writeable = False
    return array


LAYOUTS = {
    "read-only": read_only,
    "strided": lambda array: np.repeat(array, 2, axis=1)[:, ::2],
    "Fortran": np.asfortranarray,
    "reversed": lambda array: array[::-1].copy()[::-1],
    "a broadcast": lambda array: np.broadcast_to(array[:1], array.shape),
    "a subclass": lambda array: array.view(type("Mine", (np.ndarray,), {})),
    "unaligned": lambda array: np.frombuffer(b"\0" + array.tobytes(), np.uint8)[1:].view(np.int64).reshape(array.shape),
}


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_how_a_feed_lies_in_memory_does_not_matter(session, layout):
    feeds = {name: layout(array) for name, array in tiny.feeds(3, 9).items()}
    same = {name: np.array(array, order="C") for name, array in feeds.items()}
    for found, expected in zip(session.run(None, feeds), session.run(None, same), strict=True):
        np.testing.assert_array_equal(found, expected)


def test_scalars_and_empty_arrays(any_backend):
    model = graph("""g (float s, float[N] x) => (float[N] y, float t)
        { y = Add (x, s)  two = Constant <value = float {2.0}> ()  t = Mul (s, two) }""")
    with isorun.Session(model, backend=any_backend) as session:
        y, t = session.run(None, {"s": np.array(1.5, np.float32), "x": np.arange(3, dtype=np.float32)})
        np.testing.assert_array_equal(y, [1.5, 2.5, 3.5])
        assert (t.shape, t) == ((), 3.0)
        y, _ = session.run(None, {"s": np.array(1.5, np.float32), "x": np.zeros(0, np.float32)})
        assert y.shape == (0,)


def test_a_scalar_that_is_no_array_runs_or_is_refused_by_name(any_backend):
    model = graph("g (float s) => (float t) { t = Neg (s) }")
    with isorun.Session(model, backend=any_backend) as session:
        if any_backend == "ort-cpu":  # which does not take it
            with pytest.raises(InvalidFeeds, match=r"Input 's' takes a numpy\.ndarray of float32; a float32 came"):
                session.run(None, {"s": np.float32(2)})
        else:
            (t,) = session.run(None, {"s": np.float32(2)})
            assert (t.shape, t) == ((), -2)


def test_an_input_that_is_an_output(any_backend):
    """What a model hands on as it came is the caller's own all the same."""
    model = graph("g (float[N] x) => (float[N] y, float[N] z) { y = Identity (x)  z = Identity (x) }")
    with isorun.Session(model, backend=any_backend) as session:
        x = np.arange(3, dtype=np.float32)
        y, z = session.run(None, {"x": x})
        y[0], z[1] = 7, 8
        np.testing.assert_array_equal(x, [0, 1, 2])
        np.testing.assert_array_equal(y, [7, 1, 2])
        np.testing.assert_array_equal(z, [0, 8, 2])


def test_a_constant_that_is_an_output(any_backend):
    model = graph("g (float[N] x) => (float[2] c, float[N] y) <float[2] c = {1, 2}> { y = Neg (x) }")
    with isorun.Session(model, backend=any_backend) as session:
        feeds = {"x": np.ones(2, np.float32)}
        first = session.run(["c"], feeds)[0]
        np.testing.assert_array_equal(first, [1, 2])
        first[...] = 9
        np.testing.assert_array_equal(session.run(["c"], feeds)[0], [1, 2])


def test_an_initializer_that_is_an_input_may_be_fed(any_backend):
    model = graph("g (float[2] w, float[2] x) => (float[2] y) <float[2] w = {10, 20}> { y = Add (x, w) }")
    with isorun.Session(model, backend=any_backend) as session:
        assert [spec.name for spec in session.get_inputs()] == ["x"]
        assert [spec.name for spec in session.get_overridable_initializers()] == ["w"]
        x = np.ones(2, np.float32)
        np.testing.assert_array_equal(session.run(None, {"x": x})[0], [11, 21])
        if any_backend == "openvino":  # which cannot
            with pytest.raises(InvalidFeeds, match="keeps the value that the model itself has for 'w'"):
                session.run(None, {"x": x, "w": x})
        else:
            np.testing.assert_array_equal(session.run(None, {"x": x, "w": x})[0], [2, 2])


# The calling convention: functions as people write them for onnxruntime.InferenceSession


def embed_as_for_onnxruntime(session, rows):
    """Pad, feed what the model asks for by name, take the first output."""
    names = {node.name for node in session.get_inputs()}
    longest = max(map(len, rows))
    ids = np.array([row + [0] * (longest - len(row)) for row in rows], dtype=np.int64)
    feeds = {"input_ids": ids, "attention_mask": (ids != 0).astype(np.int64)}
    if "token_type_ids" in names:
        feeds["token_type_ids"] = np.zeros_like(ids)
    hidden = session.run([session.get_outputs()[0].name], feeds)[0]
    return (hidden * feeds["attention_mask"][..., None]).sum(1) / feeds["attention_mask"].sum(1, keepdims=True)


def random_feeds_as_for_onnxruntime(session):
    """Benchmarks make feeds from what the session says of its inputs."""
    types = {"tensor(int64)": np.int64, "tensor(float)": np.float32}
    feeds = {}
    for node in session.get_inputs():
        shape = [size if isinstance(size, int) else 2 for size in node.shape]
        feeds[node.name] = np.ones(shape, types[node.type])
    return session.run(None, feeds)


def results_by_name_as_for_onnxruntime(session, feeds):
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(output_names=names, input_feed=feeds), strict=True))


@pytest.fixture(scope="module")
def raw(bert):
    import onnxruntime

    return onnxruntime.InferenceSession(bert, providers=["CPUExecutionProvider"])


def test_code_for_onnxruntime_runs_on_every_backend(session, raw):
    rows = [[1, 2, 3], [4, 5, 6, 7, 8], [9]]
    np.testing.assert_allclose(
        embed_as_for_onnxruntime(session, rows), embed_as_for_onnxruntime(raw, rows), rtol=0, atol=1e-5
    )
    for found, expected in zip(
        random_feeds_as_for_onnxruntime(session), random_feeds_as_for_onnxruntime(raw), strict=True
    ):
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)
    named = results_by_name_as_for_onnxruntime(session, tiny.feeds())
    assert list(named) == ["last_hidden_state", "pooler_output"]


def test_inputs_outputs_and_metadata_are_as_onnxruntime_says_them(session, raw):
    for ours, theirs in ((session.get_inputs(), raw.get_inputs()), (session.get_outputs(), raw.get_outputs())):
        assert [(v.name, v.type, list(v.shape)) for v in ours] == [(v.name, v.type, v.shape) for v in theirs]
    ours, theirs = session.get_modelmeta(), raw.get_modelmeta()
    assert ours.graph_name == theirs.graph_name == "tiny"
    assert ours.custom_metadata_map == theirs.custom_metadata_map
    assert session.get_providers()


def test_run_async_calls_back_with_the_users_data(session):
    done, got = threading.Event(), []

    def callback(outputs, user_data, error):
        got.append((outputs, user_data, error, threading.get_ident()))
        done.set()

    mine = object()
    session.run_async(["last_hidden_state"], tiny.feeds(), callback, mine)
    assert done.wait(20)
    outputs, user_data, error, thread = got[0]
    np.testing.assert_array_equal(outputs[0], session.run(None, tiny.feeds())[0])
    assert (user_data is mine, error) == (True, "")
    assert thread != threading.get_ident()


def test_run_async_says_what_went_wrong(session):
    done, got = threading.Event(), []
    session.run_async(None, {}, lambda *arguments: (got.append(arguments), done.set()), None)
    assert done.wait(20)
    assert got[0][0] == []
    assert "No feed for" in got[0][2]


def test_submit_gives_a_future(session):
    feeds = [tiny.feeds(*shape) for shape in SHAPES]
    futures = [session.submit(None, each) for each in feeds]
    for future, each in zip(futures, feeds, strict=True):
        np.testing.assert_array_equal(future.result(20)[0], session.run(None, each)[0])
    with pytest.raises(InvalidFeeds, match="No feed for"):
        session.submit(None, {}).result(20)


def test_run_options_are_refused(session):
    with pytest.raises(InvalidFeeds, match=r"run_options is a dict; .* pass None"):
        session.run(None, tiny.feeds(), {})


def test_an_output_that_is_not_there(session):
    with pytest.raises(InvalidFeeds, match=r"no output 'last_hidden'; did you mean 'last_hidden_state'\?"):
        session.run(["last_hidden"], tiny.feeds())


# Many threads


def hammer(session, threads: int, runs: int) -> None:
    feeds = [tiny.feeds(*shape, seed=seed) for shape in SHAPES for seed in range(2)]
    expected = [session.run(None, each) for each in feeds]
    start = threading.Barrier(threads)

    def work(thread: int) -> int:
        order = np.random.default_rng(thread).integers(0, len(feeds), runs)
        start.wait()
        outputs = [(index, session.run(None, feeds[index])) for index in order]
        return sum(
            not all(np.array_equal(a, b) for a, b in zip(found, expected[index], strict=True))
            for index, found in outputs
        )

    with ThreadPoolExecutor(threads) as pool:
        assert sum(pool.map(work, range(threads))) == 0


def test_many_threads_get_what_one_gets(session):
    hammer(session, threads=8, runs=60)


@pytest.mark.long
@pytest.mark.parametrize(
    ("backend", "threads"),
    [("ort-cpu", 1), ("ort-cpu", None), ("openvino", 1), ("openvino", None), ("reference", None)],
)
def test_many_threads_get_what_one_gets_for_long(bert, backend, threads):
    with isorun.Session(bert, backend=backend, threads=threads) as opened:
        hammer(opened, threads=8, runs=500)


def test_a_failing_run_among_many_harms_no_other(session):
    expected = session.run(None, tiny.feeds())[0]
    bad = {**tiny.feeds(), "input_ids": np.full((2, 7), 10_000)}

    def work(number: int) -> bool:
        if number % 3 == 0:
            with pytest.raises(InvalidFeeds):
                session.run(None, bad)
            return True
        return np.array_equal(session.run(None, tiny.feeds())[0], expected)

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(60)))


# Closing


def test_after_close(bert, any_backend):
    session = isorun.Session(bert, backend=any_backend)
    binding = session.io_binding()
    session.close()
    session.close()
    for call in (
        lambda: session.run(None, tiny.feeds()),
        lambda: session.submit(None, tiny.feeds()),
        lambda: session.run_async(None, tiny.feeds(), print, None),
        session.io_binding,
        lambda: session.run_with_iobinding(binding),
        lambda: session.provenance,
        session.get_providers,
        session.__enter__,
    ):
        with pytest.raises(IsorunError, match="This session is closed"):
            call()
    assert session.get_inputs()[0].name == "input_ids"


def test_closing_waits_for_what_was_submitted(bert, any_backend):
    with isorun.Session(bert, backend=any_backend) as session:
        expected = session.run(None, tiny.feeds())[0]
        futures = [session.submit(None, tiny.feeds()) for _ in range(20)]
    for future in futures:
        np.testing.assert_array_equal(future.result(0)[0], expected)


def test_closing_amid_runs_of_other_threads(bert, any_backend):
    """Each run ends well or says that the session is closed: nothing else, and no crash."""
    for _ in range(3):
        session = isorun.Session(bert, backend=any_backend)
        expected = session.run(None, tiny.feeds())[0]
        started = threading.Barrier(5)

        def work(session=session, expected=expected, started=started) -> list[str]:
            started.wait()
            for _ in range(200):
                try:
                    assert np.array_equal(session.run(None, tiny.feeds())[0], expected)
                except IsorunError as error:
                    return [str(error)]
            return []

        with ThreadPoolExecutor(4) as pool:
            futures = [pool.submit(work) for _ in range(4)]
            started.wait()
            session.close()
            said = {message for future in futures for message in future.result(60)}
        assert said <= {"This session is closed. Open another."}


# Choosing a backend


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
    assert "There is no backend 'no-such'" in reasons["no-such"]
    assert "does not compute in 'fp64'. It computes in fp32" in reasons["ort-cpu"]
    assert "passed over" in str(provenance)


def test_none_of_a_list_can(bert):
    with pytest.raises(BackendUnavailable, match="ort-cpu or openvino") as caught:
        isorun.Session(bert, backend=["ort-cpu", "openvino"], precision="fp64")
    assert "  ort-cpu: it does not compute in 'fp64'" in str(caught.value)
    assert "  openvino: it does not compute in 'fp64'" in str(caught.value)


def test_a_bad_model_is_no_reason_to_try_another_backend(tmp_path):
    (tmp_path / "bad.onnx").write_bytes(b"nothing like it")
    with pytest.raises(InvalidModel, match="not an ONNX model"):
        isorun.Session(tmp_path / "bad.onnx", backend=["ort-cpu", "openvino"])


@pytest.mark.parametrize(
    ("arguments", "kind", "message"),
    [
        ({"backend": "ort-cup"}, BackendNotFound, r"no backend 'ort-cup'; did you mean 'ort-cpu'\?"),
        ({"backend": []}, ValueError, "empty list"),
        ({"backend": "ort-cpu", "precision": "bf16"}, BackendUnavailable, "does not compute in 'bf16'.*fp32"),
        ({"backend": "openvino", "precision": "fp8"}, BackendUnavailable, "'fp8'.*fp32 and bf16"),
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
        ({"threads": 0}, ValueError, "threads is 0"),
        ({"threads": -1}, ValueError, "threads is -1"),
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


def test_a_backend_that_is_not_thread_safe_is_run_in_turns(bert):
    with isorun.Session(bert, backend="reference") as session:
        inside, most = 0, 0
        run = session._executable.run

        def watched(names, feeds):
            nonlocal inside, most
            inside += 1
            most = max(most, inside)
            try:
                return run(names, feeds)
            finally:
                inside -= 1

        session._executable.run = watched
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda _: session.run(None, tiny.feeds()), range(12)))
        assert most == 1


# Provenance


def test_provenance_says_what_the_runtime_says(session):
    provenance = session.provenance
    assert provenance.backend in BACKENDS
    assert provenance.precision == "fp32"
    assert provenance.device
    assert sum(count for counts in provenance.operators.values() for count in counts.values()) > 10
    assert provenance.fused == {
        "EmbedLayerNormalization": 1,
        "SelfAttention": 2,
        "SkipLayerNormalization": 4,
        "BiasGelu": 2,
    }
    assert provenance.versions["isorun"]
    assert len(provenance.versions) > 1
    assert json.loads(json.dumps(provenance.as_dict()))["backend"] == provenance.backend


def test_provenance_names_the_lowered_model(bert, any_backend, tmp_path):
    dialect = {"ort-cpu": "com.microsoft", "openvino": "primitive", "reference": "primitive"}[any_backend]
    for cache in ("made", "found"):
        with isorun.Session(bert, backend=any_backend, cache_dir=tmp_path) as session:
            assert (session.provenance.dialect, session.provenance.cache) == (dialect, cache)
            assert session.provenance.fingerprint == hashlib.sha256(bert.read_bytes()).hexdigest()


SECOND = """
import json, sys
import numpy as np
import isorun
path, backend, cache, feeds = sys.argv[1:]
with isorun.Session(path, backend=backend, cache_dir=cache) as session:
    session.run(None, dict(np.load(feeds)))
    heavy = sorted({"onnx", "onnx_ir", "google.protobuf", "safetensors", "stevedore"} & set(sys.modules))
    print(json.dumps([heavy, session.provenance.cache]))
"""


@pytest.mark.parametrize("backend", ["ort-cpu", "openvino"])
@pytest.mark.parametrize("given", ["a file", "a checkpoint"])
def test_the_second_session_on_a_model_lowers_and_reads_nothing(bert, checkpoint, tmp_path, backend, given):
    np.savez(tmp_path / "feeds.npz", **tiny.feeds())
    model = bert if given == "a file" else checkpoint
    arguments = [str(model), backend, str(tmp_path / "cache"), str(tmp_path / "feeds.npz")]
    answers = []
    for _ in range(2):
        ran = subprocess.run(
            [sys.executable, "-W", "error", "-c", SECOND, *arguments], capture_output=True, text=True, timeout=60
        )
        assert ran.returncode == 0, ran.stderr
        answers.append(json.loads(ran.stdout))
    assert answers[0][1] == "made"
    assert "onnx" in answers[0][0]
    assert answers[1][1] == "found"
    assert answers[1][0] == []


def test_many_sessions_at_once_on_one_new_model(bert, tmp_path):
    with ThreadPoolExecutor(4) as pool:
        sessions = list(pool.map(lambda _: isorun.Session(bert, backend="ort-cpu", cache_dir=tmp_path), range(4)))
    answers = [session.run(None, tiny.feeds())[0] for session in sessions]
    for answer in answers:
        np.testing.assert_array_equal(answer, answers[0])
    assert len(list((tmp_path / "lowered").iterdir())) == 1
    for session in sessions:
        session.close()


def test_a_damaged_lowered_model_is_made_anew(bert, tmp_path):
    with isorun.Session(bert, backend="ort-cpu", cache_dir=tmp_path) as session:
        expected = session.run(None, tiny.feeds())[0]
    for name in ("model.onnx", "model.weights.bin"):
        (path,) = (tmp_path / "lowered").glob(f"*/{name}")
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 0xFF
        path.write_bytes(content)
        with isorun.Session(bert, backend="ort-cpu", cache_dir=tmp_path) as session:
            assert session.provenance.cache == "made"
            np.testing.assert_array_equal(session.run(None, tiny.feeds())[0], expected)


# Bad input, on every backend


@pytest.mark.parametrize("name", ["input_ids", "token_type_ids"])
@pytest.mark.parametrize("index", [-1, -(2**31), -(2**62), -(2**63), "rows", 2**31 - 1, 2**31, 2**32, 2**32 + 1, 2**62])
def test_a_token_outside_the_vocabulary_in_every_position(session, name, index):
    rows = tiny.VOCABULARY if name == "input_ids" else 2
    index = rows if index == "rows" else index
    for row, column in np.ndindex(2, 3):
        feeds = tiny.feeds(2, 3)
        feeds[name][row, column] = index
        with pytest.raises(InvalidFeeds) as caught:
            session.run(None, feeds)
        assert f"Input {name!r} holds {index} at [{row}, {column}]" in str(caught.value)
        assert f"0 to {rows - 1}" in str(caught.value)
    assert np.isfinite(session.run(None, tiny.feeds(2, 3))[0]).all(), "the session is none the worse"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"input_ids": np.zeros((0, 7), np.int64)}, "'input_ids' is empty"),
        ({"input_ids": np.zeros((2, 0), np.int64)}, "'input_ids' is empty"),
        ({"attention_mask": np.ones((3, 7), np.int64)}, "'input_ids' and 'attention_mask' disagree on batch: 2 and 3"),
        ({"attention_mask": np.ones((1, 7), np.int64)}, "'input_ids' and 'attention_mask' disagree on batch: 2 and 1"),
        ({"token_type_ids": np.ones((2, 6), np.int64)}, "disagree on sequence: 7 and 6"),
        ({"input_ids": np.ones((2, 41), np.int64)}, "sequence of 41; the model goes up to 40"),
        ({"input_ids": np.ones((2, 7), np.int32)}, "'input_ids' takes int64"),
        ({"input_ids": np.ones(7, np.int64)}, "'input_ids' takes 2 dimensions"),
        ({"input_ids": [[1.5] * 7] * 2}, "'input_ids' takes a numpy.ndarray"),
        ({"more": np.ones(1)}, "no input 'more'"),
    ],
)
def test_feeds_that_the_model_does_not_take(session, change, message):
    with pytest.raises(InvalidFeeds, match=message):
        session.run(None, {**tiny.feeds(), **change})
    binding = session.io_binding()
    for name, array in {**tiny.feeds(), **change}.items():
        binding.bind_cpu_input(name, array)
    binding.bind_output("last_hidden_state")
    with pytest.raises(InvalidFeeds, match=message):
        session.run_with_iobinding(binding)


def test_the_longest_sequence_runs_and_the_next_does_not(session):
    assert session.run(None, tiny.feeds(1, tiny.POSITIONS))[0].shape == (1, tiny.POSITIONS, tiny.WIDTH)
    with pytest.raises(InvalidFeeds, match="goes up to 40"):
        session.run(None, tiny.feeds(1, tiny.POSITIONS + 1))


@pytest.mark.parametrize("threads", [1, 2])
def test_what_the_runtime_refuses_is_its_failure_with_its_error_as_the_cause(any_backend, threads):
    threads = backends.threads(any_backend, threads)
    model = graph("g (float[N] x, float[M] y) => (float[K] z) { z = Add (x, y) }")
    with isorun.Session(model, backend=any_backend, threads=threads) as session:
        feeds = {"x": np.ones(2, np.float32), "y": np.ones(3, np.float32)}
        with pytest.raises(BackendFailed, match=f"{any_backend} failed while running") as caught:
            session.run(None, feeds)
        assert caught.value.__cause__ is not None
        np.testing.assert_array_equal(session.run(None, {**feeds, "x": feeds["y"]})[0], [2, 2, 2])


def test_an_operator_that_no_runtime_has(any_backend):
    model = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["" : 17, "nowhere" : 1]>
        g (float[N] x) => (float[N] y) { y = nowhere.Frobnicate (x) }""")
    with pytest.raises(UnsupportedModel, match="Frobnicate") as caught:
        isorun.Session(model, backend=any_backend)
    assert any("Frobnicate" in operator for operator in caught.value.operators) or any_backend == "reference"


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
    assert f"Backend {backend!r} is not available: the package {package!r} is not installed" in ran.stdout
    assert command in ran.stdout


def test_a_cache_that_cannot_be_written_to(bert, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(isorun.CacheError, match=r"cannot be written to.*cache_dir="):
        isorun.Session(bert, cache_dir=tmp_path / "file")


def test_models_of_every_kind_give_one_answer(bert, checkpoint, tmp_path):
    expected = None
    for model in (bert, str(bert), bert.read_bytes(), onnx.load(bert), checkpoint, Path(checkpoint)):
        with isorun.Session(model, backend="ort-cpu", cache_dir=tmp_path) as session:
            found = session.run(None, tiny.feeds())[0]
        expected = found if expected is None else expected
        np.testing.assert_array_equal(found, expected)
    assert Cache(tmp_path).root.is_dir()
