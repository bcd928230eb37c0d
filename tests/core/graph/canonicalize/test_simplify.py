"""Reshapes around dense layers: those that flatten rows go, those that join heads stay."""

import numpy as np
import onnx_ir as ir
import pytest
from onnx import numpy_helper

import exports
import onnx_text
from isorun.graph.canonicalize.simplify import simplify
from isorun.graph.matching.report import FusionReport

HEADS = "n = Constant<value = int64[4] {0, 0, 2, 2}>() h = Reshape(x, n) e = Erf(h)"
ROWS = "e = Erf(x)"


@pytest.mark.parametrize(
    ("before", "flat", "reshapes"), [(HEADS, "0, 0, 4", 3), (ROWS, "-1, 4", 0)], ids=["heads", "rows"]
)
def test_reshapes_around_a_dense_layer(before: str, flat: str, reshapes: int) -> None:
    size = flat.count(",") + 1
    joined = f"k = Constant<value = int64[{size}] {{{flat}}}>() f = Reshape(e, k) m = MatMul(f, w)"
    lengths = "a = Shape<end=2>(x) b = Constant<value = int64[1] {4}>() l = Concat<axis=0>(a, b)"
    proto = onnx_text.graph(
        f"g (float[batch,sequence,4] x) => (float[p,q,r] y) {{ {before} {joined} {lengths} y = Reshape(m, l) }}"
    )
    weight = np.random.default_rng(0).normal(size=(4, 4)).astype(np.float32)
    proto.graph.initializer.append(numpy_helper.from_array(weight, "w"))
    feeds = {"x": np.random.default_rng(1).normal(size=(2, 3, 4)).astype(np.float32)}
    model = ir.serde.deserialize_model(proto)
    simplify(model, FusionReport())
    np.testing.assert_allclose(exports.run(model, feeds)[0], exports.run(proto, feeds)[0], atol=1e-5)
    assert [node.op_type for node in model.graph].count("Reshape") == reshapes


@pytest.mark.parametrize(("attributes", "folded"), [("", True), ("<start=0>", True), ("<end=2>", False)])
def test_width_of_a_dense_layer_is_a_number(attributes: str, folded: bool) -> None:
    proto = onnx_text.graph(
        f"g (float[batch,sequence,4] x) => (float[batch,sequence,6] y) {{ m = MatMul(x, w) s = Shape{attributes}(m)"
        " i = Constant<value = int64[1] {-1}>() n = Gather(s, i) f = Cast<to=1>(n) y = Mul(m, f) }"
    )
    weight = np.random.default_rng(0).normal(size=(4, 6)).astype(np.float32)
    proto.graph.initializer.append(numpy_helper.from_array(weight, "w"))
    feeds = {"x": np.random.default_rng(1).normal(size=(2, 3, 4)).astype(np.float32)}
    model = ir.serde.deserialize_model(proto)
    simplify(model, FusionReport())
    np.testing.assert_allclose(exports.run(model, feeds)[0], exports.run(proto, feeds)[0], atol=1e-5)
    assert ("Gather" not in [node.op_type for node in model.graph]) is folded
