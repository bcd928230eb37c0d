"""Transpositions of batch and sequence go to where they cancel out, and nothing that is computed changes."""

from collections import Counter

import numpy as np
import onnx_ir as ir
import pytest
from onnx import numpy_helper
from onnx_ir.passes import common

import exports
import onnx_text
from isorun.graph.canonicalize import layouts

RNG = np.random.default_rng(0)
BATCH, LENGTH, WIDTH = 2, 5, 4
X = "float[b,s,4] x"
WEIGHTS = {"w": (4, 4), "c": (4,), "g": (4,), "row": (1, 1, 4), "place": (5, 1, 4), "wide": (2, 4)}
WEIGHTS |= {"channel": (4, 1), "by_place": (5,)}


def model(body: str, output: str = "float[p,q,r] y") -> ir.Model:
    proto = onnx_text.graph(f"g ({X}) => ({output}) {{ {body} }}")
    for name, shape in WEIGHTS.items():
        if any(name in node.input for node in proto.graph.node):
            proto.graph.initializer.append(numpy_helper.from_array(RNG.standard_normal(shape).astype(np.float32), name))
    parsed = ir.serde.deserialize_model(proto)
    common.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(parsed)
    common.ShapeInferencePass(check_type=False, strict_mode=False)(parsed)
    return parsed


def run(transposing: ir.Model) -> list[np.ndarray]:
    x = np.random.default_rng(1).standard_normal((BATCH, LENGTH, WIDTH)).astype(np.float32)
    return exports.run(transposing, {"x": x})


def rewritten(transposing: ir.Model) -> Counter[str]:
    """The operators after it, once it is known that they answer what those before did."""
    names, before = [value.name for value in transposing.graph.outputs], run(transposing)
    layouts.rewrite(transposing)
    assert [value.name for value in transposing.graph.outputs] == names
    for output, wanted in zip(run(transposing), before, strict=True):
        np.testing.assert_allclose(output, wanted, atol=1e-5)
    return Counter(node.op_type for node in transposing.graph)


IN, OUT = "t = Transpose<perm=[1,0,2]>(x)", "y = Transpose<perm=[1,0,2]>(z)"


@pytest.mark.parametrize(
    "between",
    [
        "m = MatMul(t, w) z = Add(m, c)",
        "m = MatMul(t, w) a = Add(c, m) r = Relu(a) n = MatMul(r, w) z = Add(t, n)",
        "l = LayerNormalization<axis=-1>(t, g, c) z = Mul(l, row)",
        "z = Identity(t)",
        "a = Mul(t, t) e = Erf(a) z = Sub(e, t)",
    ],
    ids=["dense", "feed-forward", "normalization", "nothing", "both"],
)
def test_two_transpositions_cancel(between: str) -> None:
    between = between.replace("z = Identity(t)", "z = Neg(t)")
    assert rewritten(model(f"{IN} {between} {OUT}"))["Transpose"] == 0


@pytest.mark.parametrize(
    ("between", "left"),
    [
        ("z = Neg(t)", 0),
        ("e = Erf(t) z = Mul(e, t)", 0),
        ("a = Add(t, channel) z = Sub(channel, a)", 0),
        ("z = Softmax<axis=1>(t)", 2),
        ("z = Add(t, by_place)", 2),
        ("z = MatMul(w, t)", 2),
    ],
    ids=["unary", "both", "a number for each channel", "by width", "a number for each place", "a product"],
)
def test_transpositions_of_width_cancel_around_what_does_not_read_it(between: str, left: int) -> None:
    transposing = model(f"t = Transpose<perm=[0,2,1]>(x) {between} y = Transpose<perm=[0,2,1]>(z)")
    assert rewritten(transposing)["Transpose"] == left


def test_moves_transposition_before_a_flattened_dense_layer() -> None:
    """As PyTorch writes the dense layer after an attention: its transposition goes before it."""
    flat = "n = Constant<value = int64[2] {-1, 4}>() f = Reshape(t, n) m = MatMul(f, w) a = Add(m, c)"
    back = "q = Constant<value = int64[3] {5, -1, 4}>() r = Reshape(a, q) z = Transpose<perm=[1,0,2]>(r) y = Add(x, z)"
    transposing = model(f"{IN} {flat} {back}")
    operators = rewritten(transposing)
    (add,) = (node for node in transposing.graph.outputs[0].producer().inputs if node.name != "x")
    assert add.producer().op_type == "Add"
    assert add.producer().inputs[0].producer().op_type == "MatMul"
    assert operators["MatMul"] == 1


def test_moves_transposition_before_a_residual_dense_layer() -> None:
    """A residual: that layer takes what is transposed, and the transposition stands before it."""
    heads = "n = Constant<value = int64[4] {0, 0, 2, 2}>() h = Reshape(t, n) p = Transpose<perm=[0,1,3,2]>(h)"
    dense = "k = Constant<value = int64[3] {0, 0, 4}>() i = Reshape(p, k) m = MatMul(i, w) a = Add(m, c)"
    transposing = model(f"{IN} {heads} {dense} z = Add(t, a) {OUT}")
    operators = rewritten(transposing)
    assert transposing.graph.outputs[0].producer().op_type == "Add"
    assert operators["Transpose"] == 3, "into the heads, of the heads, out of them"


@pytest.mark.parametrize(
    ("body", "left"),
    [
        (f"{IN} z = Softmax<axis=0>(t) {OUT}", 2),
        (f"{IN} l = LayerNormalization<axis=1>(t, wide) z = Neg(l) {OUT}", 2),
        ("t = Transpose<perm=[2,1,0]>(x) z = Neg(t) y = Transpose<perm=[2,1,0]>(z)", 2),
        (f"{IN} y = Neg(t)", 1),
        (f"{IN} z = Add(t, place) {OUT}", 1),
        ("y = Transpose<perm=[1,0,2]>(x)", 1),
        (f"{IN} y = Transpose<perm=[1,0,2]>(t)", 2),
        (f"{IN} u = Transpose<perm=[1,0,2]>(t) y = Neg(u)", 0),
    ],
    ids=[
        *("another axis", "two axes", "another order", "an output", "a table by place, laid in its stead", "alone"),
        *("adjacent, of an input that cannot be the output", "adjacent, which cancel"),
    ],
)
def test_keeps_transpositions_that_cannot_cancel(body: str, left: int) -> None:
    assert rewritten(model(body))["Transpose"] == left


def test_keeps_graph_outputs_between_transpositions() -> None:
    transposing = model(f"{IN} m = MatMul(t, w) z = Add(m, c) {OUT}", "float[p,q,r] y, float[q,p,r] z")
    assert rewritten(transposing)["Transpose"] == 1
