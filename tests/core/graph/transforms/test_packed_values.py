"""What padding removal adds to a graph has names of its own, however often it adds the same."""

import numpy as np
import onnx_ir as ir
import pytest

import exports
from isorun.graph.matching import subgraph
from isorun.graph.pipeline import fuse
from isorun.graph.transforms import padding_removal


def add_mean(model: ir.Model, operator: str) -> None:
    """Add the mean of the tokens in the mask as an output, after an activation."""
    name, activated = f"mean of {operator}", ir.node(operator, [model.graph.outputs[0]])
    hidden, (mask,) = activated.outputs[0], (value for value in model.graph.inputs if value.name == "attention_mask")
    last, one = (subgraph.constant(model.graph, f"{name}.{axis}", ir.tensor(np.array([axis]))) for axis in (-1, 1))
    hidden.type, hidden.shape = model.graph.outputs[0].type, model.graph.outputs[0].shape
    model.graph.append(activated)
    nodes = [ir.node("Cast", [mask], {"to": 1})]
    nodes.append(ir.node("Unsqueeze", [nodes[0].outputs[0], last]))
    nodes.append(ir.node("Shape", [hidden]))
    nodes.append(ir.node("Expand", [nodes[1].outputs[0], nodes[2].outputs[0]]))
    nodes.append(ir.node("Mul", [hidden, nodes[3].outputs[0]]))
    nodes += [ir.node("ReduceSum", [nodes[index].outputs[0], one], {"keepdims": 0}) for index in (4, 3)]
    nodes.append(ir.node("Div", [node.outputs[0] for node in nodes[-2:]]))
    model.graph.extend(nodes)
    result = nodes[-1].outputs[0]
    result.name, result.type, result.shape = name, hidden.type, ir.Shape(["batch", 32])
    model.graph.outputs.append(result)


@pytest.mark.parametrize("operators", [["Tanh"], ["Tanh", "Neg"], ["Tanh", "Neg", "Abs"]], ids=len)
def test_several_means_of_the_same_tokens(operators: list[str]) -> None:
    model = exports.model("squeezebert-dynamo18-eager")
    for operator in operators:
        add_mean(model, operator)
    feeds = exports.given("squeezebert-dynamo18-eager")
    expected = exports.run(ir.serde.serialize_model(model), feeds)
    fuse(model)
    padding_removal.remove(model)
    names = [node.name for node in model.graph if node.name]
    assert len(names) == len(set(names))
    real = (feeds["attention_mask"] != 0).any(axis=1)
    for wanted, actual in zip(expected[1:], exports.run(model, feeds)[1:], strict=True):
        np.testing.assert_allclose(actual[real], wanted[real], atol=1e-5)


def test_names_that_a_model_has_already() -> None:
    model = exports.fused("bert-torchscript17-eager")
    taken = ["padding.kept", "padding.rows", "padding.constant.-1", "attention_mask.shape", "input_ids.ids"]
    inner = [node.outputs[0] for node in model.graph if not node.outputs[0].is_graph_output()]
    for value, name in zip(inner, taken, strict=False):
        value.name = name
    padding_removal.remove(model)
    names = [value.name for node in model.graph for value in node.outputs] + [*model.graph.initializers]
    assert len(names) == len(set(names))
    assert set(taken) <= {*names}
