"""Bad input, on every backend."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import backends
import isorun
import tiny
from isorun.errors import BackendFailed, InvalidFeeds, UnsupportedModel
from onnx_text import graph


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
        ({"input_ids": np.ones((2, 7), np.int32)}, "'input_ids' must be int64"),
        ({"input_ids": np.ones(7, np.int64)}, "'input_ids' must have 2 dimensions"),
        ({"input_ids": [[1.5] * 7] * 2}, "'input_ids' must be a numpy.ndarray"),
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
