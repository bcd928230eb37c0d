"""In fp64, the reference decides as the model itself does: where rounding moves a number across a boundary."""

import numpy as np
import onnx.parser
import pytest

import isorun

# 0.7 in fp32 is below 0.7 in fp64: n * 0.7 * 100 is below or above an integer.
N = np.arange(1, 500)
DECISIONS = {
    "Cast": "scaled = Mul (part, hundred) d = Cast <to = 7> (scaled)",
    "Floor to Cast": "scaled = Mul (part, hundred) f = Floor (scaled) d = Cast <to = 7> (f)",
    "Greater": "s = Mul (part, ten) b = Greater (sevenfold, s) d = Cast <to = 7> (b)",
    "Equal": "scaled = Mul (part, ten) b = Equal (scaled, sevenfold) d = Cast <to = 7> (b)",
    "Where and Clip": "c = Clip (part, , high) w = Where (even, c, third) s = Mul (w, hundred) d = Cast <to = 7> (s)",
    "Min and Max": "m = Min (part, limit) s = Max (m, third) t = Mul (s, hundred) d = Cast <to = 7> (t)",
    "shapes": "u = Unsqueeze (part, zero) t = Transpose (u) r = Reshape (t, all) s = Mul (r, hundred) "
    "d = Cast <to = 7> (s)",
    "a constant of another shape": "s = Mul (part, column) f = Floor (s) "
    "g = ReduceMax <keepdims = 0, axes = [0]> (f) d = Cast <to = 7> (g)",
    "ArgMax": "s = Mul (part, ten) f = Floor (s) t = Sub (s, f) p = Unsqueeze (t, one) q = Pad (p, widths) "
    "d = ArgMax <axis = 1, keepdims = 0> (q)",
    "TopK": "s = Mul (part, ten) f = Floor (s) t = Sub (s, f) p = Unsqueeze (t, one) q = Pad (p, widths) "
    "v, i = TopK <axis = 1> (q, k) d = Squeeze (i, one)",
    "Gather": "s = Mul (part, hundred) i = Cast <to = 7> (s) r = Range (start, many, step) d = Gather (r, i)",
    "If": "d = If (yes) <then_branch = t () => (int64[m] a) { s = Mul (part, hundred) a = Cast <to = 7> (s) }, "
    "else_branch = e () => (int64[m] b) { b = Identity (n) }>",
    "Loop": "d = Loop (k0, yes, n) <body = l (int64 i, bool c, int64[m] before) => (bool again, int64[m] after) "
    "{ again = Identity (c) s = Mul (part, hundred) after = Cast <to = 7> (s) }>",
}
CONSTANTS = (
    "float share = {0.7}, float ten = {10}, float seven = {7}, float hundred = {100}, float limit = {7}, "
    "float high = {300}, float third = {0.3}, "
    "float[2, 1] column = {10, 70}, int64[1] zero = {0}, int64[1] one = {1}, int64[1] all = {-1}, int64 k0 = {1}, "
    "int64[4] widths = {0, 1, 0, 0}, int64[1] k = {1}, int64 start = {0}, int64 many = {50000}, int64 step = {1}, "
    "bool yes = {1}, int64 two = {2}, int64 none = {0}"
)


def model(body: str, output: str = "int64[m] d", share: str = "Mul (x, share)") -> onnx.ModelProto:
    return onnx.parser.parse_model(
        f'<ir_version: 10, opset_import: ["" : 17]> g (int64[m] n) => ({output}) <{CONSTANTS}> {{ '
        f"x = Cast <to = 1> (n) rest = Mod (n, two) even = Equal (rest, none) "
        f"sevenfold = Mul (x, seven) part = {share} {body} }}"
    )


def results(graph: onnx.ModelProto, backend: str, precision: str = "fp32", **feeds: np.ndarray) -> list[np.ndarray]:
    with isorun.Session(graph, backend=backend, precision=precision) as session:
        return session.run(None, feeds)


@pytest.mark.parametrize("name", DECISIONS)
def test_fp64_decides_as_the_model(name: str) -> None:
    graph = model(DECISIONS[name])
    narrow = results(graph, "reference", n=N)[0]
    np.testing.assert_array_equal(results(graph, "reference", "fp64", n=N)[0], narrow)
    np.testing.assert_array_equal(results(graph, "ort-cpu", n=N)[0], narrow)


@pytest.mark.parametrize("name", DECISIONS)
def test_the_numbers_are_at_the_boundary(name: str) -> None:
    """The same graph in double precision, of which nothing is kept, decides otherwise somewhere."""
    text = DECISIONS[name]
    wide = onnx.parser.parse_model(
        f'<ir_version: 10, opset_import: ["" : 17]> g (int64[m] n) => (int64[m] d) '
        f"<{CONSTANTS.replace('float ', 'double ').replace('float[', 'double[')}> {{ x = Cast <to = 11> (n) "
        f"rest = Mod (n, two) even = Equal (rest, none) sevenfold = Mul (x, seven) part = Mul (x, share) {text} }}"
    )
    assert not np.array_equal(results(wide, "reference", "fp64", n=N)[0], results(model(text), "reference", n=N)[0])


def test_fp64_rounds_as_the_model_and_returns_double_precision() -> None:
    graph = model("s = Mul (part, hundred) d = Floor (s)", "float[m] d")
    narrow, wide = results(graph, "reference", n=N)[0], results(graph, "reference", "fp64", n=N)[0]
    assert (narrow.dtype, wide.dtype) == (np.float32, np.float64)
    np.testing.assert_array_equal(narrow, wide)


def test_fp64_compares_float_feeds_as_the_model() -> None:
    graph = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["" : 17]> g (float[m] x, float[m, 2] y) => (bool[m] d, float[m, 2] z) '
        "<float share = {0.7}, float[2, 2] w = {1, 2, 3, 4}, float limit = {4.1}> "
        "{ part = Mul (x, share) d = Less (part, limit) z = MatMul (y, w) }"
    )
    feeds = {"x": N.astype(np.float32), "y": np.full((len(N), 2), 0.1, np.float32)}
    narrow, wide = (results(graph, "reference", precision, **feeds) for precision in ("fp32", "fp64"))
    np.testing.assert_array_equal(narrow[0], wide[0])
    assert wide[1].dtype == np.float64
    np.testing.assert_allclose(wide[1], feeds["y"].astype(np.float64) @ [[1, 2], [3, 4]], rtol=1e-15)


def test_a_weight_that_also_decides_is_widened_too() -> None:
    graph = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["" : 17]> g (float[m, 2] y) => (bool[2, 2] d, float[m, 2] z) '
        "<float[2, 2] w = {1, 2, 3, 4}, float limit = {2.5}> { d = Less (w, limit) z = MatMul (y, w) }"
    )
    with isorun.Session(graph, backend="reference", precision="fp64") as session:
        assert session.run(None, {"y": np.ones((1, 2), np.float32)})[1].dtype == np.float64
        assert session.provenance.precision == "fp64"
