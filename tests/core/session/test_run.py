"""What a run gives, on every backend, however its feeds lie in memory."""

from __future__ import annotations

import numpy as np
import pytest

import isorun
import numpy_bert
import tiny
from isorun.errors import InvalidFeeds
from onnx_text import graph


@pytest.mark.parametrize("kind", tiny.MASKS)
def test_every_backend_computes_the_bert(session, kind):
    feeds = tiny.feeds(3, 9, kind=kind)
    expected = numpy_bert.run(tiny.CONFIG, tiny.weights(), feeds)
    expected["last_hidden_state"] = expected["last_hidden_state"] * (feeds["attention_mask"] != 0)[..., None]
    outputs = session.run(None, feeds)
    for found, (name, array) in zip(outputs, expected.items(), strict=True):
        assert (type(found), found.dtype) == (np.ndarray, np.float32)
        np.testing.assert_allclose(found, array, rtol=0, atol=2e-5, err_msg=name)


@pytest.mark.parametrize("shape", tiny.SHAPES)
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


def test_a_numpy_scalar_is_an_array_without_dimensions(any_backend):
    model = graph("g (float s) => (float t) { t = Neg (s) }")
    with isorun.Session(model, backend=any_backend) as session:
        (t,) = session.run(None, {"s": np.float32(2)})
        assert (t.shape, t) == ((), -2)
        with pytest.raises(InvalidFeeds, match="float64"):
            session.run(None, {"s": np.float64(2)})


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
            with pytest.raises(InvalidFeeds, match="own value of 'w'"):
                session.run(None, {"x": x, "w": x})
        else:
            np.testing.assert_array_equal(session.run(None, {"x": x, "w": x})[0], [2, 2])
