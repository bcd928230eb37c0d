"""What sets reference apart; the rest is proved by the conformance suite."""

import numpy as np
import onnx.parser
import pytest

import isorun


def test_fp64_widens_what_local_functions_compute():
    model = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["" : 17, "mine" : 1]>
        g (float[N] x) => (float[N] y) { y = mine.Rounded (x) }
        <domain: "mine", opset_import: ["" : 17]> Rounded (a) => (d) {
            large = Constant <value_float = 16777216.0> ()
            b = Add (a, large)
            d = Sub (b, large)
        }""")
    for precision, rounded in (("fp32", 0), ("fp64", 1)):
        with isorun.Session(model, backend="reference", precision=precision) as session:
            np.testing.assert_array_equal(session.run(None, {"x": np.ones(2, np.float32)})[0], [rounded, rounded])


def test_fp64_keeps_integers_rounded_from_integers_in_the_models_type():
    model = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["" : 17]>
        g (int64[N] distance) => (int64[N] bucket) <float eight = {8}, float log_sixteen = {2.7725887}> {
            x = Cast <to = 1> (distance)
            ratio = Div (x, eight)
            log = Log (ratio)
            share = Div (log, log_sixteen)
            scaled = Mul (share, eight)
            bucket = Cast <to = 7> (scaled)
        }""")
    distance = np.arange(8, 128)
    ratio = distance.astype(np.float32) / np.float32(8)
    expected = (np.log(ratio) / np.float32(2.7725887) * np.float32(8)).astype(np.int64)
    for precision in ("fp32", "fp64"):
        with isorun.Session(model, backend="reference", precision=precision) as session:
            np.testing.assert_array_equal(session.run(None, {"distance": distance})[0], expected)


@pytest.mark.parametrize("opset", [10, 13, 17, 19, 21, 23])
def test_turns_integers_back_in_every_opset(opset: int) -> None:
    model = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["" : {opset}]> g (uint8[2, 3] q) => (float[2, 3] y) '
        "<float s = {0.5}, uint8 z = {3}> { y = DequantizeLinear (q, s, z) }"
    )
    integers = np.arange(6, dtype=np.uint8).reshape(2, 3)
    with isorun.Session(model, backend="reference") as session:
        np.testing.assert_array_equal(session.run(None, {"q": integers})[0], (integers.astype(np.float32) - 3) * 0.5)


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_logarithms_of_small_probabilities_are_finite(axis: int) -> None:
    model = onnx.parser.parse_model(f"""<ir_version: 9, opset_import: ["" : 17]>
        g (float[2, 3] x) => (float[2, 3] y) {{ y = LogSoftmax <axis = {axis}> (x) }}""")
    x = np.array([[0, 300, -300], [1e4, 0, 88]], np.float32)
    expected = x - np.logaddexp.reduce(x.astype(np.float64), axis=axis, keepdims=True)
    for precision in ("fp32", "fp64"):
        with isorun.Session(model, backend="reference", precision=precision) as session:
            np.testing.assert_allclose(session.run(None, {"x": x})[0], expected, rtol=1e-6)


def test_integers_of_each_row_and_channel_have_zero_points_and_scales_of_their_own() -> None:
    model = onnx.parser.parse_model("""<ir_version: 9, opset_import: ["" : 13]>
        g (uint8[3, 3] a, uint8[1, 2, 4] x) => (int32[3, 3] m, uint8[3, 3] n, int32[1, 2, 3] c, uint8[1, 2, 3] d)
        <uint8[3] zeros = {1, 2, 3}, float[3] scales = {1, 2, 4}, float unit = {1}, uint8 none = {0},
         uint8[2, 2, 2] w = {9, 9, 9, 9, 9, 9, 9, 9}, uint8[2] z = {1, 7}, float[2] by_channel = {0.25, 2}> {
            m = MatMulInteger (a, a, zeros)
            n = QLinearMatMul (a, scales, zeros, a, unit, none, scales, zeros)
            c = ConvInteger (x, w, none, z)
            d = QLinearConv (x, unit, none, w, by_channel, z, unit, none)
        }""")
    a, zeros = np.arange(9, dtype=np.uint8).reshape(3, 3), np.array([[1], [2], [3]])
    scales = np.array([[1], [2], [4]])
    product = (a.astype(int) - zeros) @ a
    with isorun.Session(model, backend="reference") as session:
        m, n, c, d = session.run(None, {"a": a, "x": np.ones((1, 2, 4), np.uint8)})
    np.testing.assert_array_equal(m, product)
    np.testing.assert_array_equal(n, np.clip(scales * product / scales + zeros, 0, 255))
    np.testing.assert_array_equal(c[0], [[32] * 3, [8] * 3])
    np.testing.assert_array_equal(d[0], [[8] * 3, [16] * 3])


@pytest.mark.parametrize("sizes", [(), (3,), (2, 3)])
@pytest.mark.parametrize("condition", ["", "yes"])
def test_results_of_a_loop_have_an_axis_of_iterations(sizes: tuple[int, ...], condition: str) -> None:
    kind = f"float[{', '.join(map(str, sizes))}]" if sizes else "float"
    model = onnx.parser.parse_model(f"""<ir_version: 10, opset_import: ["" : 17]>
        g ({kind} x, int64 n) => ({kind} y, float z) <bool yes = {{1}}> {{
            y, z = Loop (n, {condition}, x) <body = b (int64 i, bool k, {kind} s) => (bool k2, {kind} s2, {kind} o) {{
                k2 = Identity (k) s2 = Add (s, s) o = Identity (s2)
            }}>
        }}""")
    model.graph.output[1].type.tensor_type.ClearField("shape")
    x = np.ones(sizes, np.float32)
    with isorun.Session(model, "reference") as session:
        last, results = session.run(None, {"x": x, "n": np.array(3)})
    np.testing.assert_array_equal(last, 8 * x)
    np.testing.assert_array_equal(results, [2 * x, 4 * x, 8 * x])


@pytest.mark.parametrize(
    ("signature", "value"),
    [
        ("float[n] x) => (optional(float[n]) y)", np.ones(2, np.float32)),
        ("seq(float[n]) x) => (optional(seq(float[n])) y)", [np.ones(2, np.float32)]),
        ("optional(float[n]) x) => (optional(float[n]) y)", np.ones(2, np.float32)),
        ("optional(seq(float[n])) x) => (optional(seq(float[n])) y)", [np.ones(2, np.float32)]),
    ],
)
def test_an_optional_is_its_value(signature: str, value: object) -> None:
    node = "Identity" if signature.startswith("optional") else "Optional"
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 18]> g ({signature} {{ y = {node} (x) }}')
    with isorun.Session(model.SerializeToString(), "reference") as session:
        (y,) = session.run(None, {"x": value})
    assert type(y) is type(value)
    np.testing.assert_array_equal(y, value)


@pytest.mark.parametrize(
    ("nodes", "expected"),
    [
        ("s = SequenceConstruct (x, x) o = Optional (s) t = OptionalGetElement (o) y = SequenceLength (t)", 2),
        ("o = Optional (x) t = OptionalGetElement (o) y = Size (t)", 3),
    ],
)
def test_operators_read_the_value_of_an_optional(nodes: str, expected: int) -> None:
    model = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["" : 18]> g (float[n] x) => (int64 y) {{ {nodes} }}'
    )
    with isorun.Session(model.SerializeToString(), "reference") as session:
        assert session.run(None, {"x": np.ones(3, np.float32)})[0] == expected


@pytest.mark.parametrize("opset", [7, 9, 14])
def test_normalizes_batches_by_the_stored_mean(opset: int) -> None:
    model = onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["" : {opset}]>
        g (float[n, 1] x) => (float[n, 1] y)
        <float[1] scale = {{2}}, float[1] bias = {{1}}, float[1] mean = {{4}}, float[1] variance = {{1}}>
        {{ y = BatchNormalization <epsilon = 0.0> (x, scale, bias, mean, variance) }}""")
    with isorun.Session(model.SerializeToString(), "reference") as session:
        assert session.run(None, {"x": np.array([[1], [5]], np.float32)})[0].tolist() == [[-5], [3]]


def test_arrays_of_a_sequence_belong_to_the_caller() -> None:
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 17]>
        g (float[n] x) => (seq(float[n]) y) { y = SequenceConstruct (x, x) }""")
    x = np.ones(2, np.float32)
    with isorun.Session(model.SerializeToString(), "reference") as session:
        first, second = session.run(None, {"x": x})[0]
    first[...] = 2
    assert (x.tolist(), second.tolist()) == ([1, 1], [1, 1])
