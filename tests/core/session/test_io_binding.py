"""Bound arrays are read and written in place: the same memory, seen by its address."""

import numpy as np
import onnx
import pytest

import backends
import isorun
import tiny
from bindings import bound
from isorun.errors import InvalidArgument, InvalidFeeds


@pytest.fixture(scope="module", params=backends.BACKENDS)
def session(request, bert):
    with isorun.Session(bert, backend=request.param, threads=backends.threads(request.param, 1)) as opened:
        yield opened


def bind_output_to(binding, name, array):
    binding.bind_output(name, "cpu", 0, array.dtype, array.shape, array.ctypes.data)


def test_bindings_written_for_onnxruntime_run_unchanged(session):
    feeds = tiny.feeds()
    binding = session.io_binding()
    for name, array in feeds.items():
        binding.bind_input(name, "cpu", 0, np.int64, array.shape, array.ctypes.data)
    binding.bind_output("last_hidden_state", "cpu")
    binding.bind_output("pooler_output")
    binding.synchronize_inputs()
    session.run_with_iobinding(binding)
    binding.synchronize_outputs()
    expected = session.run(None, feeds)
    for output, array in zip(binding.copy_outputs_to_cpu(), expected, strict=True):
        np.testing.assert_array_equal(output, array)
    values = binding.get_outputs()
    assert [value.shape() for value in values] == [list(array.shape) for array in expected]
    assert {value.device_name() for value in values} == {"cpu"}
    np.testing.assert_array_equal(values[1].numpy(), expected[1])


def test_a_list_is_converted_when_it_is_bound(session):
    feeds = tiny.feeds(seed=1)
    binding = bound(session, {name: array.tolist() for name, array in feeds.items()}, "pooler_output")
    session.run_with_iobinding(binding)
    np.testing.assert_array_equal(binding.copy_outputs_to_cpu()[0], session.run(["pooler_output"], feeds)[0])


def test_read_only_inputs_are_read_at_every_run(session):
    feeds = tiny.feeds()
    views = {name: array.view() for name, array in feeds.items()}
    for view in views.values():
        view.flags.writeable = False
    binding = bound(session, views, "last_hidden_state")
    for seed in (1, 2):
        for name, array in tiny.feeds(seed=seed).items():
            feeds[name][...] = array
        session.run_with_iobinding(binding)
        expected = session.run(["last_hidden_state"], feeds)
        np.testing.assert_array_equal(binding.copy_outputs_to_cpu(), expected)


def test_copies_of_bound_outputs_are_kept(session):
    """A caller keeps the result of each run, as with ONNX Runtime."""
    feeds = tiny.feeds()
    target = np.empty_like(session.run(["pooler_output"], feeds)[0])
    binding = bound(session, feeds)
    bind_output_to(binding, "pooler_output", target)
    kept, expected = [], []
    for seed in range(3):
        for name, array in tiny.feeds(seed=seed).items():
            feeds[name][...] = array
        session.run_with_iobinding(binding)
        kept += binding.copy_outputs_to_cpu()
        expected += session.run(["pooler_output"], feeds)
        np.testing.assert_array_equal(target, expected[-1])
    np.testing.assert_array_equal(kept, expected)


def test_clearing_unbinds_outputs_and_inputs(session):
    binding = bound(session, tiny.feeds(), "last_hidden_state")
    binding.clear_binding_outputs()
    with pytest.raises(InvalidFeeds, match="No output is bound"):
        session.run_with_iobinding(binding)
    binding.bind_output("pooler_output")
    session.run_with_iobinding(binding)
    assert len(binding.get_outputs()) == 1
    binding.clear_binding_inputs()
    with pytest.raises(InvalidFeeds, match="No feed for"):
        session.run_with_iobinding(binding)


def test_validates_bound_inputs_at_every_run(session):
    feeds = tiny.feeds()
    binding = bound(session, feeds, "last_hidden_state")
    session.run_with_iobinding(binding)
    for index in (tiny.VOCABULARY, -1, 2**31, 2**62):
        feeds["input_ids"][1, 2] = index
        with pytest.raises(InvalidFeeds, match=rf"'input_ids' .* got {index} at \[1, 2\]"):
            session.run_with_iobinding(binding)
    feeds["input_ids"][1, 2] = 1
    session.run_with_iobinding(binding)


def test_memory_that_an_output_does_not_fit_is_named(session):
    feeds = tiny.feeds()
    binding = bound(session, feeds)
    (expected,) = session.run(["pooler_output"], feeds)
    for wrong in (expected[:, :1].copy(), expected[:1].copy(), expected.astype(np.float64)):
        bind_output_to(binding, "pooler_output", wrong)
        with pytest.raises(InvalidFeeds, match="'pooler_output'"):
            session.run_with_iobinding(binding)
    right = np.empty_like(expected)
    bind_output_to(binding, "pooler_output", right)
    session.run_with_iobinding(binding)
    np.testing.assert_array_equal(right, expected)


def test_a_binding_of_another_session_is_refused(session, bert):
    binding = bound(session, tiny.feeds(), "last_hidden_state")
    with isorun.Session(bert, backend="reference") as second:
        with pytest.raises(InvalidFeeds, match=r"io_binding\(\)"):
            second.run_with_iobinding(binding)
        assert binding.get_outputs() == []  # nor did it run where it was made
        foreign = object()
        with pytest.raises(InvalidFeeds, match="object"):
            second.run_with_iobinding(foreign)
    session.run_with_iobinding(binding)


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [
        ((2, 6, 32), np.float32),
        ((2, 8, 32), np.float32),
        ((1, 7, 32), np.float32),
        ((14, 32), np.float32),
        ((2, 7, 32), np.float64),
    ],
)
def test_rejects_memory_that_does_not_fit_the_output(session, shape, dtype):
    """It is refused, or the runtime refuses it; nothing is written beyond it and nothing is left half filled."""
    around = np.full(10_000, 7, np.uint8)
    array = around[: int(np.prod(shape)) * np.dtype(dtype).itemsize].view(dtype).reshape(shape)
    before = around.copy()
    binding = bound(session, tiny.feeds())
    bind_output_to(binding, "last_hidden_state", array)
    with pytest.raises(isorun.IsorunError, match=r"last_hidden_state|shape|fail|type"):
        session.run_with_iobinding(binding)
    end = array.nbytes
    np.testing.assert_array_equal(around[end:], before[end:])


@pytest.mark.parametrize(
    ("bind", "message"),
    [
        (lambda b: b.bind_output("nothing"), "no output 'nothing'"),
        (
            lambda b: b.bind_output("pooler_output", "rocm"),
            "'pooler_output': unknown device rocm:0",
        ),
        (lambda b: b.bind_input("input_ids", "rocm", 0, np.int64, (1, 1), 1), "'input_ids': unknown device rocm:0"),
        (lambda b: b.bind_input("input_ids", "cpu", 1, np.int64, (1, 1), 1), "'input_ids': unknown device cpu:1"),
        (lambda b: b.bind_output("pooler_output", "cpu", 0, None, None, 64), "element type and a shape"),
        (lambda b: b.bind_output("pooler_output", "cpu", 0, np.float32, None, 64), "element type and a"),
        (lambda b: b.bind_output("pooler_output", "cpu", 0, object, (1,), 64), "element_type"),
        (lambda b: b.bind_output("pooler_output", "cpu", 0, "float23", (1,), 64), "element_type"),
        (lambda b: b.bind_output("pooler_output", "cpu", 0, np.float32, 3, 64), "shape"),
        (lambda b: b.bind_output("pooler_output", "cpu", 0, np.float32, (1, -1), 64), "shape"),
        (lambda b: b.bind_output("pooler_output", "cpu", 0, np.float32, (1, 1.5), 64), "shape"),
        (lambda b: b.bind_output("pooler_output", "cpu", 0, np.float32, (1, 2), 0), "buffer_ptr"),
        (lambda b: b.bind_output("pooler_output", "cpu", 0, np.float32, (1, 2), 1.5), "buffer_ptr"),
        (
            lambda b: b.bind_output("pooler_output", "cpu", 0, np.float32, (1, 2), 10**30),
            "no address space has 8 bytes",
        ),
        (lambda b: b.bind_output("pooler_output", "cpu", 0, np.float32, (10**30,), 64), "no address space"),
        (lambda b: b.bind_cpu_input(["input_ids"], np.ones((1, 1))), "name"),
        (lambda b: b.bind_cpu_input("input_id", np.ones((1, 1), np.int64)), "no input 'input_id'.*'input_ids'"),
    ],
)
def test_rejects_invalid_bindings(session, bind, message):
    with pytest.raises((InvalidFeeds, InvalidArgument), match=message):
        bind(session.io_binding())


def test_bound_memory_is_not_copied(session, monkeypatch):
    """No array as large as an input or an output comes to be while a binding runs."""
    if session.provenance.backend == "reference":
        pytest.skip("the evaluator computes in arrays of its own: its results are copied into what is given")
    import tracemalloc

    shape = (64, tiny.POSITIONS)
    feeds = tiny.feeds(*shape)
    hidden = np.empty((*shape, tiny.WIDTH), np.float32)
    binding = bound(session, feeds)
    bind_output_to(binding, "last_hidden_state", hidden)
    session.run_with_iobinding(binding)
    tracemalloc.start()
    try:
        for _ in range(5):
            session.run_with_iobinding(binding)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < hidden.nbytes / 4, "NumPy's memory is traced: a copy of the output would be seen"


@pytest.mark.parametrize("backend", ["ort-cpu", "openvino", "reference"])
def test_a_number_stays_one(backend):
    """An array of rank 0, bound and returned, has no axis."""
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 17]>
        g (float s, float[n] x) => (float twice, float[n] y) { twice = Add (s, s) y = Mul (x, s) }
    """)
    with isorun.Session(model, backend) as opened:
        binding = bound(opened, {"s": np.array(2, np.float32), "x": np.ones(3, np.float32)}, "twice", "y")
        opened.run_with_iobinding(binding)
        assert [value.shape() for value in binding.get_outputs()] == [[], [3]]
        assert [array.tolist() for array in binding.copy_outputs_to_cpu()] == [4, [2, 2, 2]]


@pytest.mark.parametrize("backend", ["ort-cpu", "reference"])
def test_sequences_and_optional_values_are_bound(backend):
    parts, count, present = (
        onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 18]> {text}')
        for text in (
            "g (float[n, m] x) => (seq(float[k, m]) y) { y = SplitToSequence <axis = 0> (x) }",
            "g (seq(float[n]) x) => (int64 y) { y = SequenceLength (x) }",
            "g (optional(float[n]) x) => (bool y) { y = OptionalHasElement (x) }",
        )
    )
    rows = np.arange(6, dtype=np.float32).reshape(2, 3)
    for model, feeds, expected in (
        *((parts, {"x": rows}, [rows[:1], rows[1:]]), (count, {"x": [*rows]}, 2)),
        *((present, {"x": None}, False), (present, {}, False)),
    ):
        with isorun.Session(model, backend) as opened:
            binding = bound(opened, feeds, "y")
            opened.run_with_iobinding(binding)
            np.testing.assert_equal(binding.copy_outputs_to_cpu(), [expected])
    with isorun.Session(parts, backend) as opened:
        binding = bound(opened, {"x": rows})
        bind_output_to(binding, "y", rows.copy())
        with pytest.raises(InvalidFeeds, match="'y'"):
            opened.run_with_iobinding(binding)


def test_results_are_those_of_the_last_run(session):
    binding = bound(session, tiny.feeds(), "pooler_output")
    assert binding.get_outputs() == []
    session.run_with_iobinding(binding)
    (expected,) = binding.copy_outputs_to_cpu()
    binding.bind_output("last_hidden_state")
    (kept,) = binding.copy_outputs_to_cpu()
    np.testing.assert_array_equal(kept, expected)
    binding.clear_binding_outputs()
    assert binding.copy_outputs_to_cpu() == binding.get_outputs() == []


@pytest.mark.parametrize("backend", ["ort-cpu", "reference"])
def test_strings_of_numpy_are_read_at_every_run(backend):
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]> g (string[n] x) => (string[n] y) { y = Identity (x) }'
    )
    words = np.array(["a\0b", "c"])
    with isorun.Session(model, backend) as opened:
        binding = bound(opened, {"x": words}, "y")
        for word in ("a\0b", "de"):
            words[0] = word
            opened.run_with_iobinding(binding)
            assert binding.copy_outputs_to_cpu()[0].tolist() == [word, "c"]


@pytest.mark.parametrize("backend", ["ort-cpu", "openvino", "reference"])
@pytest.mark.parametrize("outputs", [["x"], ["x", "y"], ["y", "x"]])
def test_an_output_that_is_an_input_is_copied(backend, outputs):
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]> g (float[n] x) => (float[n] x, float[n] y) { y = Neg (x) }'
    )
    fed, memory = np.ones(3, np.float32), np.zeros(3, np.float32)
    with isorun.Session(model, backend) as opened:
        binding = bound(opened, {"x": fed}, *outputs)
        opened.run_with_iobinding(binding)
        results = dict(zip(outputs, binding.copy_outputs_to_cpu(), strict=True))
        bind_output_to(binding, "x", memory)
        opened.run_with_iobinding(binding)
        np.testing.assert_array_equal(memory, fed)
        fed[:] = 5
        np.testing.assert_array_equal(results["x"], [1, 1, 1])


@pytest.mark.parametrize("backend", ["ort-cpu", "reference"])
def test_parts_of_a_feed_are_copied(backend):
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]> g (float[n] x) => (seq(float[m]) y) '
        "{ y = SplitToSequence <axis = 0> (x) }"
    )
    fed = np.ones(2, np.float32)
    with isorun.Session(model, backend) as opened:
        (parts,) = opened.run(None, {"x": fed})
        fed[:] = 5
        assert [part.tolist() for part in parts] == [[1], [1]]


@pytest.mark.parametrize("backend", backends.BACKENDS)
def test_output_may_replace_its_input(backend):
    """A state that each run reads and writes: a product is written before all of its input has been read."""
    weight = np.random.default_rng(0).standard_normal((64, 64), np.float32) / 8
    text = '<ir_version: 8, opset_import: ["" : 17]> g (float[4, 64] x, float[64, 64] w) => (float[4, 64] y)'
    model = onnx.parser.parse_model(text + " { y = MatMul (x, w) }").SerializeToString()
    expected = np.eye(4, 64, dtype=np.float32)
    state = expected.copy()
    with isorun.Session(model, backend=backend) as session:
        binding = bound(session, {"x": state, "w": weight})
        bind_output_to(binding, "y", state)
        for _ in range(3):
            session.run_with_iobinding(binding)
            expected = expected @ weight
            np.testing.assert_allclose(state, expected, rtol=1e-4, atol=1e-5)
        elsewhere = np.zeros_like(state)
        bind_output_to(binding, "y", elsewhere)
        session.run_with_iobinding(binding)
        np.testing.assert_allclose(state, expected, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(elsewhere, expected @ weight, rtol=1e-4, atol=1e-5)
