"""What tract computes wrongly, and what would end the process."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import onnx
import pytest

import isorun
from isorun.cli.doctor import operator_tests
from isorun.types.faults import Fault
from isorun_tract.faults import FAULTS

IDS = [f"{row.operator}-{index}" for index, row in enumerate(FAULTS.rows)]


@pytest.mark.parametrize("row", FAULTS.rows, ids=IDS)
def test_session_returns_no_wrong_number(row: Fault) -> None:
    tested = operator_tests.try_row("tract", row, with_raw=False)
    assert tested.session == {"rewritten": "right", "refused": "refused"}[row.action]


@pytest.mark.parametrize("row", FAULTS.rows, ids=IDS)
def test_row_is_still_needed(row: Fault) -> None:
    if row.ends_process:
        code = (
            "from dataclasses import replace; from isorun.cli.doctor.operator_tests import try_row; "
            "from isorun_tract.faults import FAULTS; "
            f"try_row('tract', replace(FAULTS.rows[{FAULTS.rows.index(row)}], ends_process=False))"
        )
        assert subprocess.run([sys.executable, "-c", code], check=False, capture_output=True).returncode < 0
    else:
        assert operator_tests.try_row("tract", row).raw == "wrong"


VALID = {
    "a layer in both directions": (
        "g (float[a, 1, 1] x) => (float[b, c, d, e] y) <float[2, 1, 1] w = {1, -1}> "
        '{ y = RNN <hidden_size = 1, direction = "bidirectional", activations = ["Tanh", "Tanh"]> (x, w, w) }',
        {"x": np.array([1, -2], np.float32).reshape(2, 1, 1)},
    ),
    "an LSTM with the usual activations": (
        "g (float[a, 1, 1] x) => (float[b, c, d, e] y) <float[1, 4, 1] w = {1, 1, 1, 1}> "
        '{ y = LSTM <hidden_size = 1, activations = ["Sigmoid", "Tanh", "Tanh"]> (x, w, w) }',
        {"x": np.array([1, -2], np.float32).reshape(2, 1, 1)},
    ),
    "a GELU": (
        "g (float[n] x) => (float[n] y) <float r = {1.4142135}, float one = {1}, float half = {0.5}> "
        "{ a = Div (x, r) b = Erf (a) c = Add (b, one) d = Mul (x, c) y = Mul (d, half) }",
        {"x": np.array([-1.5, 1], np.float32)},
    ),
    "a Tanh and a GELU after a bias": (
        "g (float[n, 2] x) => (float[n, 2] y) <float[2] v = {1, 2}, float r = {1.4142135}, float one = {1}, "
        "float half = {0.5}> { u = Add (x, v) t = Tanh (u) a = Div (u, r) b = Erf (a) c = Add (b, one) "
        "d = Mul (u, c) e = Mul (d, half) y = Mul (e, t) }",
        {"x": np.array([[-1.5, 1]], np.float32)},
    ),
    "edges": (
        'g (float[a, b] x) => (float[c, d] y) <int64[4] p = {0, 1, 0, 1}> { y = Pad <mode = "edge"> (x, p) }',
        {"x": np.array([[1, 2]], np.float32)},
    ),
    "an omitted input": (
        "g (float[a] x, float[1] k) => (float[a] y) <float[1] k = {2}> { y = Mul (x, k) }",
        {"x": np.array([1, 2], np.float32)},
    ),
    "remainders by a scalar": (
        "g (int64[a, b] x) => (int64[a, b] y) <int64 z = {3}> { y = Mod (x, z) }",
        {"x": np.array([[-7, 8]])},
    ),
    "remainders of equal shapes": (
        "g (int64[a, b] x, int64[a, b] z) => (int64[a, b] y) { y = Mod (x, z) }",
        {"x": np.array([[-7, 8]]), "z": np.array([[3, 5]])},
    ),
    "computed indices": (
        "g (float[a, b] x, int64[c] i) => (float[d, e] y) { y = Gather (x, i) }",
        {"x": np.arange(6, dtype=np.float32).reshape(3, 2), "i": np.array([2, -3])},
    ),
}


def model(body: str, opset: int = 17) -> onnx.ModelProto:
    return onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : {opset}]> {body}')


@pytest.mark.parametrize("name", VALID)
def test_results_are_those_of_onnx_runtime(name: str) -> None:
    body, feeds = VALID[name]
    with isorun.Session(model(body), "tract") as session, isorun.Session(model(body), "ort-cpu") as reference:
        np.testing.assert_allclose(session.run(None, feeds)[0], reference.run(None, feeds)[0], atol=1e-5)


@pytest.mark.parametrize("operator", ["ReduceSum", "ReduceMean", "ReduceMax", "ReduceL2"])
def test_rejects_a_reduction_of_nothing(operator: str) -> None:
    proto = model(f"g (float[a, b] x) => (float[c, d] y) {{ y = {operator} <axes = [1]> (x) }}", 11)
    with isorun.Session(proto, "tract") as session:
        with pytest.raises(isorun.InvalidFeeds, match="length 0"):
            session.run(None, {"x": np.ones((2, 0), np.float32)})
        assert session.run(None, {"x": np.ones((2, 1), np.float32)})[0].tolist() == [[1], [1]]


@pytest.mark.parametrize(("operator", "rank"), [("Gather", 1), ("GatherElements", 2)])
def test_rejects_lookups_in_nothing(operator: str, rank: int) -> None:
    sizes = ", ".join("cd"[:rank])
    proto = model(f"g (float[a, b] x, int64[{sizes}] i) => (float[e, f] y) {{ y = {operator} (x, i) }}")
    with isorun.Session(proto, "tract") as session, pytest.raises(isorun.InvalidFeeds):
        session.run(None, {"x": np.ones((0, 2), np.float32), "i": np.zeros((1,) * rank, np.int64)})


def test_rejects_a_feed_in_the_place_of_a_default() -> None:
    body, feeds = VALID["an omitted input"]
    with isorun.Session(model(body), "tract") as session, pytest.raises(isorun.InvalidFeeds, match="'k'"):
        session.run(None, {**feeds, "k": np.array([3], np.float32)})


def test_refuses_outputs_of_sizes() -> None:
    proto = model("g (float[a, b] x) => (int64[2] y) { y = Shape (x) }")
    with isorun.Session(proto, "tract") as session, pytest.raises(isorun.UnsupportedModel, match="sizes"):
        session.run(None, {"x": np.ones((2, 3), np.float32)})


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ("g (float[n] x) => (float[n] y) { q = Cast <to = 17> (x) y = Cast <to = 1> (q) }", "type Float8e4m3fn"),
        ("g (float[n, n] x) => (float[a, b] y) { y = Flatten <axis = 2> (x) }", "Flatten"),
    ],
    ids=["type", "node"],
)
def test_refuses_what_tract_cannot_load(body: str, named: str) -> None:
    with pytest.raises(isorun.UnsupportedModel, match=rf"{named}.*Choose another backend"):
        isorun.Session(model(body, 19), "tract").run(None, {"x": np.ones((1, 1), np.float32)})


def test_computes_an_empty_batch_that_is_not_reduced() -> None:
    proto = model("g (float[a, b] x) => (float[a, 1] y) { y = ReduceMean <axes = [-1]> (x) }")
    with isorun.Session(proto, "tract") as session:
        assert session.run(None, {"x": np.ones((0, 3), np.float32)})[0].shape == (0, 1)


def test_rejects_an_empty_input_if_the_length_of_a_reduction_is_computed() -> None:
    proto = model(
        "g (float[a, b] x, float[a, c] z) => (float[a, 1] y) "
        "{ s = Concat <axis = 1> (x, z) y = ReduceMean <axes = [1]> (s) }"
    )
    feeds = {"x": np.ones((2, 0), np.float32), "z": np.ones((2, 1), np.float32)}
    with isorun.Session(proto, "tract") as session, pytest.raises(isorun.InvalidFeeds):
        session.run(None, feeds)
