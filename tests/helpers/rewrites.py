"""Models of people's own, made from the exports by rewriting them; and the check that fusing changes no answer."""

import numpy as np
import onnx_ir as ir

import exports
from isorun.graph.matching import subgraph
from isorun.graph.matching.report import FusionReport
from isorun.graph.pipeline import fuse

LAYERS = 3
PLAIN = "bert-torchscript17-eager"


def check(model: ir.Model, feeds: exports.Feeds) -> tuple[ir.Model, FusionReport]:
    """Fuse a copy; whatever was fused, it answers what the model answers."""
    proto = ir.serde.serialize_model(model)
    fused = ir.serde.deserialize_model(proto)
    report = fuse(fused)
    assert exports.difference(exports.run(proto, feeds), exports.run(fused, feeds)) < exports.TOLERANCE
    return fused, report


def feeds(names: tuple[str, ...] = ("input_ids", "attention_mask", "token_type_ids")) -> exports.Feeds:
    return exports.feeds(list(names))


def fed(model: ir.Model, name: str) -> ir.Value:
    """An input of a model."""
    return next(value for value in model.graph.inputs if value.name == name)


def first(model: ir.Model, operator: str) -> ir.Node:
    return next(node for node in model.graph if node.op_type == operator)


def dense(model: ir.Model, name: str) -> tuple[ir.Node, ir.Node]:
    """The product and the sum of a dense layer of :data:`PLAIN`."""
    bias = model.graph.initializers[f"model.encoder.layer.{name}.bias"]
    (add,) = bias.consumers()
    product = next(value for value in add.inputs if value is not bias)
    return product.producer(), add


def number(model: ir.Model, name: str, array: object, dtype: type = np.float32) -> ir.Value:
    return subgraph.constant(model.graph, name, ir.tensor(np.array(array, dtype)))


def before(node: ir.Node, index: int, operator: str, *others: ir.Value, **attributes: int) -> ir.Node:
    """Put a node between another one and one of its inputs."""
    value = node.inputs[index]
    assert value is not None
    new_node = ir.node(operator, [value, *others], attributes)
    node.prepend(new_node)
    node.replace_input_with(index, new_node.outputs[0])
    return new_node


def put(at: ir.Node, operator: str, *inputs: ir.Value, outputs: int = 1, **attributes: object) -> ir.Value:
    """Put a node before another one; its first result."""
    node = ir.node(operator, list(inputs), attributes, num_outputs=outputs)
    at.prepend(node)
    return node.outputs[0]


def use(model: ir.Model, name: str) -> None:
    """Make a value of the graph an output of it."""
    value = next(output for node in model.graph for output in node.outputs if output.name == name)
    value.type, value.shape = ir.TensorType(ir.DataType.FLOAT), None
    model.graph.outputs.append(value)
