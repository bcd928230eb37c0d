"""What a run returns on every backend. The conformance suite checks order, memory and layouts."""

import numpy as np
import pytest

import isorun
import numpy_bert
import tiny
from bindings import bound
from isorun.errors import InvalidFeeds
from onnx_text import graph


@pytest.mark.parametrize("kind", tiny.MASKS)
def test_every_backend_computes_the_bert(session, kind):
    feeds = tiny.feeds(3, 9, kind=kind)
    expected = numpy_bert.run(tiny.CONFIG, tiny.weights(), feeds)
    expected["last_hidden_state"] = expected["last_hidden_state"] * (feeds["attention_mask"] != 0)[..., None]
    outputs = session.run(None, feeds)
    for output, (name, array) in zip(outputs, expected.items(), strict=True):
        assert (type(output), output.dtype) == (np.ndarray, np.float32)
        np.testing.assert_allclose(output, array, rtol=0, atol=2e-5, err_msg=name)


def test_scalars_and_empty_arrays(any_backend):
    model = graph("""g (float s, float[N] x) => (float[N] y, float t)
        { y = Add (x, s)  two = Constant <value = float {2.0}> ()  t = Mul (s, two) }""")
    with isorun.Session(model, backend=any_backend) as session:
        y, t = session.run(None, {"s": np.array(1.5, np.float32), "x": np.arange(3, dtype=np.float32)})
        np.testing.assert_array_equal(y, [1.5, 2.5, 3.5])
        assert (t.shape, t) == ((), 3.0)
        y, _ = session.run(None, {"s": np.array(1.5, np.float32), "x": np.zeros(0, np.float32)})
        assert y.shape == (0,)


def test_a_numpy_scalar_is_accepted_as_an_array_without_dimensions(any_backend):
    model = graph("g (float s) => (float t) { t = Neg (s) }")
    with isorun.Session(model, backend=any_backend) as session:
        (t,) = session.run(None, {"s": np.float32(2)})
        assert (t.shape, t) == ((), -2)
        with pytest.raises(InvalidFeeds, match="float64"):
            session.run(None, {"s": np.float64(2)})


def test_writing_to_a_constant_output_does_not_change_the_next_run(any_backend):
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
            with pytest.raises(InvalidFeeds, match="own value of 'w'"):
                session.run(None, {"x": x, "w": x})
        else:
            np.testing.assert_array_equal(session.run(None, {"x": x, "w": x})[0], [2, 2])


@pytest.mark.parametrize("backend", ["ort-cpu", "openvino", "reference"])
def test_inputs_that_disagree_in_a_named_size_are_the_callers_fault(backend: str) -> None:
    model = graph("g (float[N, M] x, float[N, M] z) => (float[N, M] y) { y = Add (x, z) }")
    x = np.ones((2, 3), np.float32)
    with isorun.Session(model, backend) as session:
        for wrong, sizes in ((x[:1], "same N, got 1 and 2"), (x[:, :2], "same M, got 2 and 3")):
            with pytest.raises(InvalidFeeds, match=sizes):
                session.run(None, {"x": wrong, "z": x})
        np.testing.assert_array_equal(session.run(None, {"x": x, "z": x})[0], x + x)
        if backend == "ort-cpu":
            with pytest.raises(InvalidFeeds, match="same M"):
                session.run_with_iobinding(bound(session, {"x": x[:, :2], "z": x}, "y"))


@pytest.mark.parametrize("backend", ["ort-cpu", "openvino"])
def test_one_name_for_two_sizes_of_an_input_is_reported_with_a_remedy(backend: str) -> None:
    model = graph("g (float[N, N] x, float[3, 3] z) => (float[N, 3] y) { y = MatMul (x, z) }")
    with isorun.Session(model, backend) as session, pytest.raises(InvalidFeeds, match="'x' has dimensions of 3 and 2"):
        session.run(None, {"x": np.ones((3, 2), np.float32), "z": np.ones((3, 3), np.float32)})


def test_inputs_that_disagree_in_a_name_and_run_are_as_right_as_without_names() -> None:
    model = graph("g (float[N] x, float[N] z) => (float[M] y) { y = Add (x, z) }")
    x = np.ones(3, np.float32)
    with isorun.Session(model, "ort-cpu") as session:
        np.testing.assert_array_equal(session.run(None, {"x": x[:1], "z": x})[0], x + x)
