"""Biases of heads go to the dense layer before them, where nothing else reads what they are added to."""

from collections import Counter

import numpy as np
import onnx_ir as ir
import pytest
from onnx import numpy_helper
from onnx_ir.passes import common

import exports
import onnx_text
from isorun.graph.canonicalize import head_biases
from isorun.graph.io.shape_inference import infer_shapes

HEADS = "n = Constant<value = int64[4] {0, 0, 2, 6}>() h = Reshape(m, n) t = Transpose<perm=[0,2,1,3]>(h)"
PARTS = "q, k, v = Split<axis=3>(t)"
ADDED = "a = Add(q, c) b = Add(d, v) z = MatMul(a, b)"


def operators(body: str, shapes: dict[str, tuple[int, ...]], output: str = "float[p,q,r,w] y") -> Counter[str]:
    """The operators after it, once it is known that they answer what those before did."""
    proto = onnx_text.graph(f"g (float[b,s,4] x) => ({output}) {{ {body} }}")
    random = np.random.default_rng(0)
    for name, shape in shapes.items():
        proto.graph.initializer.append(numpy_helper.from_array(random.normal(size=shape).astype(np.float32), name))
    model = ir.serde.deserialize_model(proto)
    common.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(model)
    infer_shapes(model)
    x = random.normal(size=(3, 2, 4)).astype(np.float32)
    before = exports.run(model, {"x": x})
    head_biases.move(model.graph)
    np.testing.assert_allclose(exports.run(model, {"x": x})[0], before[0], atol=1e-5)
    common.RemoveUnusedNodesPass()(model)
    return Counter(node.op_type for node in model.graph)


SHAPES = {"w": (4, 12), "c": (1, 2, 1, 2), "d": (1, 2, 1, 2)}


@pytest.mark.parametrize("bias", [False, True], ids=["without a bias", "with one"])
def test_biases_of_queries_and_values_become_one(bias: bool) -> None:
    layer = "o = MatMul(x, w) m = Add(o, e)" if bias else "m = MatMul(x, w)"
    shapes = SHAPES | ({"e": (12,)} if bias else {})
    counts = operators(f"{layer} {HEADS} {PARTS} {ADDED.replace('z = MatMul(a, b)', 'y = Mul(a, b)')}", shapes)
    assert counts["MatMul"] == 1
    assert counts["Add"] <= 2  # one after another, after the layer
    assert counts["Mul"] == 1


@pytest.mark.parametrize("layer", ["m = MatMul(x, w)", "o = MatMul(x, w) m = Add(o, e)"])
@pytest.mark.parametrize("tail", ["y = Add(m, f)", "z = Add(f, m) y = Neg(z)"], ids=["an output", "read"])
def test_a_bias_of_more_dimensions_than_one(layer: str, tail: str) -> None:
    body, shapes = f"{layer} {tail}", {"w": (4, 12), "f": (1, 1, 12)} | ({"e": (12,)} if "e)" in layer else {})
    assert operators(body, shapes, "float[p,q,r] y")["MatMul"] == 1


@pytest.mark.parametrize(
    ("tail", "shapes"),
    [
        ("a = Add(q, c) y = Mul(a, q)", SHAPES),
        ("a = Add(q, c) y = Neg(a)", SHAPES | {"c": (1, 1, 2, 2)}),
        ("a = Add(q, c) y = Neg(a)", SHAPES | {"c": (3, 1, 1, 1)}),
    ],
    ids=["read without it", "by place", "by row"],
)
def test_keeps_a_bias(tail: str, shapes: dict[str, tuple[int, ...]]) -> None:
    used = {name: shape for name, shape in shapes.items() if name != "d"}
    counts = operators(f"m = MatMul(x, w) {HEADS} {PARTS} {tail}", used)
    assert counts["Add"] == 1
    assert counts["Split"] == 1
