"""The precision of a graph's products."""

import pytest

import onnx_text
from isorun_backends.nvidia.graph_precision import graph_precision


@pytest.mark.parametrize(
    ("types", "precision"), [(("float",), "fp32"), (("float16",), "fp16"), (("float", "float16"), "fp16+fp32")]
)
def test_is_that_of_the_weights_of_products(types, precision):
    weights = ", ".join(f"{type}[1, 1] w{index} = {{1}}" for index, type in enumerate(types))
    inputs = ", ".join(f"{type}[1, 1] x{index}" for index, type in enumerate(types))
    outputs = ", ".join(f"{type}[1, 1] y{index}" for index, type in enumerate(types))
    nodes = " ".join(f"y{index} = MatMul(x{index}, w{index})" for index in range(len(types)))
    graph = onnx_text.graph(f"g ({inputs}) => ({outputs}) <{weights}> {{ {nodes} }}").graph
    assert graph_precision(graph) == precision


def test_other_nodes_do_not_count():
    graph = onnx_text.graph("g (float16[1] x) => (float16[1] y) <float16[1] w = {1}> { y = Add(x, w) }").graph
    assert graph_precision(graph) == "fp32"
