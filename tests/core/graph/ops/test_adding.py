"""Nodes that are added to a graph: calls nest, and integers are constants that the graph has once."""

import numpy as np
import onnx_ir as ir

from isorun.graph.matching import subgraph
from isorun.graph.ops.adding import Beside
from onnx_text import graph


def added() -> tuple[ir.Model, ir.Node]:
    model = ir.serde.deserialize_model(graph("g (float[n] x) => (float[n] y) { y = Neg (x) }"))
    return model, model.graph[0]


def test_equal_constants_are_one() -> None:
    model, node = added()
    op = subgraph.Before(node)
    first = op("Reshape", op("Unsqueeze", model.graph.inputs[0], [0]), [-1])
    again = subgraph.Before(node)("Reshape", first, [-1])
    assert again.producer().inputs[1] is first.producer().inputs[1]
    assert len(model.graph.initializers) == 2
    assert [added.op_type for added in model.graph] == ["Unsqueeze", "Reshape", "Reshape", "Neg"]


def test_constants_of_one_label_that_differ_are_several() -> None:
    _, node = added()
    contents = [np.zeros(3, np.float32), np.zeros(3, np.float16), np.ones(3, np.float32), np.zeros(3, np.float32)]
    values = [subgraph.Before(node).constant("zeros", content) for content in contents]
    assert values[0] is values[3]
    assert len({value.name for value in values}) == 3


def test_constants_beside_a_node_are_nodes() -> None:
    model, node = added()
    op = Beside(node, "part")
    node.replace_input_with(0, op("Mul", model.graph.inputs[0], op.constant("two", np.array(2, np.float32))))
    assert [(added.op_type, added.name) for added in model.graph][:2] == [("Constant", "part.0"), ("Mul", "part.1")]
    assert not model.graph.initializers
