"""Pointwise convolutions become dense layers that give the same; others stay."""

from collections import Counter

import numpy as np
import onnx_ir as ir
import pytest
from onnx import numpy_helper

import exports
import onnx_text
from isorun.graph.canonicalize import pointwise
from isorun.graph.io.shape_inference import infer_shapes

WIDTH, LENGTH = 8, 5


def model(attributes: str, weight: tuple[int, ...], bias: bool = True) -> ir.Model:
    proto = onnx_text.graph(
        f"g (float[b,{WIDTH},s] x) => (float[p,q,r] y) {{ y = Conv<{attributes}>(x, w{', c' if bias else ''}) }}"
    )
    random = np.random.default_rng(0)
    for name, shape in {"w": weight, "c": weight[:1]}.items():
        if name in proto.graph.node[0].input:
            proto.graph.initializer.append(numpy_helper.from_array(random.normal(size=shape).astype(np.float32), name))
    result = ir.serde.deserialize_model(proto)
    infer_shapes(result)
    return result


def operators(convolution: ir.Model) -> Counter[str]:
    """The operators after it, once it is known that they answer what those before did."""
    x = np.random.default_rng(1).normal(size=(2, WIDTH, LENGTH)).astype(np.float32)
    before = exports.run(convolution, {"x": x})
    pointwise.rewrite(convolution.graph)
    np.testing.assert_allclose(exports.run(convolution, {"x": x})[0], before[0], atol=1e-5)
    return Counter(node.op_type for node in convolution.graph)


@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize("bias", [False, True])
def test_a_dense_layer_for_each_group(groups: int, bias: bool) -> None:
    counts = operators(model(f"group={groups}, kernel_shape=[1]", (12, WIDTH // groups, 1), bias))
    assert (counts["Conv"], counts["MatMul"], counts["Add"], counts["Transpose"]) == (0, groups, bias, 2)


@pytest.mark.parametrize(
    ("attributes", "weight"),
    [
        ("kernel_shape=[3], pads=[1,1]", (12, WIDTH, 3)),
        ("strides=[2]", (12, WIDTH, 1)),
        ("pads=[1,0]", (12, WIDTH, 1)),
    ],
    ids=["wider", "with steps", "padded"],
)
def test_keeps_other_convolutions(attributes: str, weight: tuple[int, ...]) -> None:
    assert operators(model(attributes, weight)) == {"Conv": 1}
