"""Halves that are turned by position, and what only looks like them."""

import numpy as np
import onnx
import pytest

import isorun

WIDTH = 8
PARTS = {
    "halves": ((4, WIDTH), (0, 4)),
    "halves in negative numbers": ((-4, 2**62), (0, -4)),
    "the first half negated": ((0, 4), (4, WIDTH)),
    "unequal parts": ((2, WIDTH), (0, 2)),
    "parts that overlap": ((2, 6), (0, 4)),
}


def assert_turned(model: onnx.ModelProto, negated: slice, kept: slice, worked_around: bool) -> None:
    """OpenVINO's result is right, with the model as it is or not."""
    random = np.random.default_rng(0)
    x, c, s = (
        random.normal(size=(rows, heads, 3, WIDTH)).astype(np.float32) for rows, heads in ((2, 2), (1, 1), (1, 1))
    )
    turned = np.concatenate([-x[..., negated], x[..., kept]], axis=-1)
    with isorun.Session(model.SerializeToString(), "openvino") as session:
        (result,) = session.run(None, {"x": x, "c": c, "s": s})
        graph = session.provenance.details.get("graph", {})
    np.testing.assert_allclose(result, x * c + turned * s, rtol=1e-5, atol=1e-5)
    assert ("worked_around" in graph) == worked_around


@pytest.mark.parametrize("label", PARTS)
@pytest.mark.parametrize("negative", ["Neg (a)", "Mul (a, minus)"])
def test_turns_a_value_by_its_parts(label: str, negative: str) -> None:
    """OpenVINO turns halves whatever the parts are (2026.4), which ends the process for some."""
    (begin, end), (other_begin, other_end) = PARTS[label]
    model = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["" : 17]> g (float[N, 2, 3, {WIDTH}] x, float[1, 1, 3, {WIDTH}] c, '
        f"float[1, 1, 3, {WIDTH}] s) => (float[N, 2, 3, {WIDTH}] y) <int64[1] begin = {{{begin}}}, "
        f"int64[1] end = {{{end}}}, int64[1] other_begin = {{{other_begin}}}, int64[1] other_end = {{{other_end}}}, "
        f"int64[1] last = {{3}}, float minus = {{-1}}> {{ a = Slice (x, begin, end, last) "
        f"b = Slice (x, other_begin, other_end, last) n = {negative} h = Concat <axis = -1> (n, b) "
        "p = Mul (x, c) q = Mul (h, s) y = Add (p, q) }"
    )
    assert_turned(model, slice(begin, end), slice(other_begin, other_end), "halves" not in label)


@pytest.mark.parametrize("divisor", [2, 3, 4])
def test_turns_a_value_by_parts_of_a_computed_size(divisor: int) -> None:
    """As exporters write them: the size of an axis is divided."""
    model = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["" : 17]> g (float[N, 2, 3, {WIDTH}] x, float[1, 1, 3, {WIDTH}] c, '
        f"float[1, 1, 3, {WIDTH}] s) => (y) <int64 axis = {{3}}, int64 divisor = {{{divisor}}}, int64[1] zero = {{0}}, "
        "int64[1] last = {3}, int64[1] end = {9223372036854775807}> "
        "{ shape = Shape (x) width = Gather (shape, axis) part = Div (width, divisor) place = Unsqueeze (part, zero) "
        f"a = Slice (x, place, end, last) b = Slice (x, zero, place, last) n = Neg (a) h = Concat <axis = -1> (n, b) "
        "p = Mul (x, c) q = Mul (h, s) y = Add (p, q) }"
    )
    assert_turned(model, slice(WIDTH // divisor, WIDTH), slice(WIDTH // divisor), divisor != 2)
