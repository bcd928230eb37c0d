"""What people's models have beside the exports in tests/fixtures, and what only looks like an encoder."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx_ir as ir
import pytest
from onnx_ir.passes import common

import exports
from isorun.errors import UnsupportedModel
from isorun.graph import padding
from isorun.graph.fused import fuse
from isorun.graph.fusion import subgraph
from isorun.graph.fusion.report import FusionReport

LAYERS = 3
PLAIN = "bert-torchscript17-eager"
DECOMPOSED = "bert-torchscript14-eager"
LOWEST = float(np.finfo(np.float32).min)


def check(model: ir.Model, given: exports.Feeds) -> tuple[ir.Model, FusionReport]:
    """Fuse a copy; whatever was fused, it answers what the model answers."""
    proto = ir.serde.serialize_model(model)
    fused = ir.serde.deserialize_model(proto)
    report = fuse(fused)
    assert exports.difference(exports.run(proto, given), exports.run(fused, given)) < exports.TOLERANCE
    return fused, report


def feeds(names: tuple[str, ...] = ("input_ids", "attention_mask", "token_type_ids")) -> exports.Feeds:
    return exports.feeds(list(names))


def first(model: ir.Model, operator: str) -> ir.Node:
    return next(node for node in model.graph if node.op_type == operator)


def number(model: ir.Model, name: str, array: object, dtype: type = np.float32) -> ir.Value:
    return subgraph.constant(model.graph, name, ir.tensor(np.array(array, dtype)))


def before(node: ir.Node, index: int, operator: str, *others: ir.Value, **attributes: int) -> ir.Node:
    """Put a node between another one and one of its inputs."""
    value = node.inputs[index]
    assert value is not None
    made = ir.node(operator, [value, *others], attributes)
    graph = node.graph
    assert isinstance(graph, ir.Graph)
    graph.insert_before(node, made)
    node.replace_input_with(index, made.outputs[0])
    return made


def use(model: ir.Model, name: str) -> None:
    """Make a value of the graph an output of it."""
    value = next(each for node in model.graph for each in node.outputs if each.name == name)
    value.type, value.shape = ir.TensorType(ir.DataType.FLOAT), None
    model.graph.outputs.append(value)


def held(node: ir.Node) -> ir.Value:
    """What a Constant node holds."""
    return ir.Value(const_value=node.attributes["value"].as_tensor())


# --- what is fused


@pytest.mark.parametrize("dtype", [ir.DataType.INT32, ir.DataType.FLOAT, ir.DataType.BOOL])
def test_a_mask_of_another_type(dtype: ir.DataType) -> None:
    model = exports.model(PLAIN)
    mask = next(value for value in model.graph.inputs if value.name == "attention_mask")
    mask.type = ir.TensorType(dtype)
    given = feeds()
    given["attention_mask"] = given["attention_mask"].astype(dtype.numpy())
    fused, report = check(model, given)
    assert report.complete, str(report)
    assert next(value for value in fused.graph.inputs if value.name == "attention_mask").dtype == dtype


def test_ids_of_32_bits() -> None:
    model = exports.model(PLAIN)
    given = feeds()
    for value in model.graph.inputs:
        assert value.name is not None
        value.type = ir.TensorType(ir.DataType.INT32)
        given[value.name] = given[value.name].astype(np.int32)
    fused, report = check(model, given)
    assert report.complete, str(report)
    assert all(value.dtype == ir.DataType.INT32 for value in fused.graph.inputs)


def test_other_names_of_dimensions_and_inputs() -> None:
    model = exports.model(PLAIN)
    for value in model.graph.inputs:
        value.name = f"{value.name}:0"
        value.shape = ir.Shape(["N", None])
    given = {f"{name}:0": array for name, array in feeds().items()}
    fused, report = check(model, given)
    assert report.complete, str(report)
    ids, *others = fused.graph.inputs
    assert ids.shape == ir.Shape(["N", "sequence"]), "it is held to the table of positions, by this name"
    assert all(value.shape == ir.Shape(["N", None]) for value in others)


@pytest.mark.parametrize("label", [PLAIN, "mpnet-dynamo18-eager", "bert-dynamo23-sdpa"])
def test_no_mask(label: str) -> None:
    """A mask that is part of the model, all ones, is no mask."""
    model = exports.model(label)
    ids = model.graph.inputs[0]
    at = next(index for index, value in enumerate(model.graph.inputs) if value.name == "attention_mask")
    mask = model.graph.inputs.pop(at)
    shape = ir.node("Shape", [ids])
    ones = ir.node("ConstantOfShape", shape.outputs, {"value": ir.tensor(np.ones(1, np.int64))})
    model.graph.insert_before(model.graph[0], [shape, ones])
    ir.convenience.replace_all_uses_with(mask, ones.outputs[0])
    names = tuple(value.name or "" for value in model.graph.inputs)
    _, report = check(model, feeds(names))
    assert report.complete, str(report)


def test_a_mask_from_the_ids() -> None:
    """Where the id of padding masks, the comparison is the mask."""
    model = exports.model(PLAIN)
    ids = model.graph.inputs[0]
    mask = model.graph.inputs.pop(1)
    pad = number(model, "pad", 7, np.int64)
    equal = ir.node("Equal", [ids, pad])
    keep = ir.node("Not", equal.outputs)
    as_numbers = ir.node("Cast", keep.outputs, {"to": int(ir.DataType.INT64)})
    model.graph.insert_before(model.graph[0], [equal, keep, as_numbers])
    ir.convenience.replace_all_uses_with(mask, as_numbers.outputs[0])
    given = feeds(("input_ids", "token_type_ids"))
    given["input_ids"][:, 2::3] = 7
    given["input_ids"][4] = 7
    _, report = check(model, given)
    assert report.complete, str(report)


def test_a_mask_that_the_ids_have_a_part_in() -> None:
    """Two masks make one, and that one is taken."""
    model = exports.model(PLAIN)
    mask, ids = model.graph.inputs[1], model.graph.inputs[0]
    uses = list(mask.uses())
    equal = ir.node("Equal", [ids, number(model, "pad", 7, np.int64)])
    keep = ir.node("Not", equal.outputs)
    as_numbers = ir.node("Cast", keep.outputs, {"to": int(ir.DataType.INT64)})
    both = ir.node("Mul", [mask, as_numbers.outputs[0]])
    model.graph.insert_before(model.graph[0], [equal, keep, as_numbers, both])
    for user, index in uses:
        if user.op_type != "Shape":
            user.replace_input_with(index, both.outputs[0])
    given = feeds()
    given["input_ids"][:, 2::3] = 7
    _, report = check(model, given)
    assert report.complete, str(report)


def test_a_finite_mask_value() -> None:
    """Where masked scores are lowered by 10,000, a row without any key attends by its scores.

    Scores of such a row are rounded to thousandths, so the last row is compared loosely.
    """
    model = exports.model(PLAIN)
    lowered = 0
    for node in model.graph:
        for index, value in enumerate(node.inputs):
            if node.op_type == "Where" and subgraph.scalar(value) == LOWEST:
                node.replace_input_with(index, number(model, "minus_10000", -10000.0))
                lowered += 1
    for node in model.graph:
        if node.op_type == "Constant" and subgraph.scalar(held(node)) == LOWEST:
            node.attributes["value"] = ir.AttrTensor("value", ir.tensor(np.float32(-10000.0)))
            lowered += 1
    assert lowered
    proto = ir.serde.serialize_model(model)
    report = fuse(model)
    assert report.complete, str(report)
    attentions = [node for node in model.graph if node.op_type == "SelfAttention"]
    assert {node.attributes["mask_filter_value"].as_float() for node in attentions} == {-10000.0}
    expected, got = exports.run(proto, feeds()), exports.run(model, feeds())
    assert exports.difference([each[:4] for each in expected], [each[:4] for each in got]) < exports.TOLERANCE
    assert exports.difference(expected, got) < 0.01


def test_batch_and_sequence_as_one_dimension() -> None:
    """Dense layers and normalizations over (tokens, hidden); the heads alone have batch and sequence apart."""
    model = exports.model(PLAIN)
    tokens = number(model, "tokens", [-1, 32], np.int64)

    def flatten(value: ir.Value) -> ir.Value:
        uses = [use for use in value.uses() if use.node.op_type != "Shape"]
        made = ir.node("Reshape", [value, tokens])
        producer = value.producer()
        assert producer is not None
        model.graph.insert_after(producer, made)
        for use in uses:
            use.node.replace_input_with(use.idx, made.outputs[0])
        return made.outputs[0]

    for layer in range(LAYERS):
        bias = model.graph.initializers[f"model.encoder.layer.{layer}.attention.output.dense.bias"]
        (add,) = bias.consumers()
        product = next(value for value in add.inputs if value is not bias)
        assert product is not None
        matmul = product.producer()
        assert matmul is not None
        context = matmul.inputs[0]
        assert context is not None
        flatten(context)
    for node in model.graph:  # batch and sequence are told by the ids, the only value left that has them apart
        source = node.inputs[0].producer() if node.op_type == "Shape" and node.inputs[0] is not None else None
        if source is not None and source.op_type == "LayerNormalization":
            node.replace_input_with(0, model.graph.inputs[0])
    flatten(first(model, "LayerNormalization").outputs[0])
    model.graph.outputs.pop()  # the pooler takes the first token of three dimensions
    common.RemoveUnusedNodesPass()(model)
    model.graph.outputs[0].shape = None
    _, report = check(model, feeds())
    assert report.complete, str(report)


def test_projections_without_biases() -> None:
    model = exports.model(PLAIN)
    for name in ("query", "key", "value"):
        bias = model.graph.initializers[f"model.encoder.layer.1.attention.self.{name}.bias"]
        (add,) = bias.consumers()
        product = next(value for value in add.inputs if value is not bias)
        assert product is not None
        ir.convenience.replace_all_uses_with(add.outputs[0], product)
    _, report = check(model, feeds())
    assert report.complete, str(report)


def test_a_mask_that_is_a_count() -> None:
    """What is computed from the count masks, right or wrong: it is kept."""
    model = exports.model(PLAIN)
    counted(model)
    fused, report = check(model, feeds())
    assert report.complete, str(report)
    (mask,) = {node.inputs[1] for node in fused.graph if node.op_type == "SelfAttention"}
    assert mask is not None
    assert not mask.is_graph_input()


# --- what is not


def softmax(model: ir.Model) -> ir.Node:
    return first(model, "Softmax")


def causal(model: ir.Model) -> None:
    """Queries see no later key."""
    scores = softmax(model).inputs[0]
    assert scores is not None
    shape = ir.node("Shape", [scores], {"start": 2})
    full = ir.node("ConstantOfShape", shape.outputs, {"value": ir.tensor(np.full(1, -1e9, np.float32))})
    upper = ir.node("Trilu", [full.outputs[0], number(model, "above", 1, np.int64)], {"upper": 1})
    model.graph.insert_before(softmax(model), [shape, full, upper])
    before(softmax(model), 0, "Add", upper.outputs[0])


def window(model: ir.Model) -> None:
    """Queries see keys at most 20 away: no sample as short as the others shows that."""
    ids = model.graph.inputs[0]
    nodes = [ir.node("Shape", [ids], {"start": 1, "end": 2})]
    nodes.append(ir.node("Squeeze", nodes[-1].outputs))
    zero, one = number(model, "zero", 0, np.int64), number(model, "one", 1, np.int64)
    nodes.append(ir.node("Range", [zero, nodes[-1].outputs[0], one]))
    row = nodes[-1].outputs[0]
    nodes.append(ir.node("Unsqueeze", [row, number(model, "last", [1], np.int64)]))
    nodes.append(ir.node("Sub", [row, nodes[-1].outputs[0]]))
    nodes.append(ir.node("Abs", nodes[-1].outputs))
    nodes.append(ir.node("Greater", [nodes[-1].outputs[0], number(model, "reach", 20, np.int64)]))
    nodes.append(ir.node("Where", [nodes[-1].outputs[0], number(model, "out", -1e9), number(model, "in", 0.0)]))
    model.graph.insert_before(softmax(model), nodes)
    before(softmax(model), 0, "Add", nodes[-1].outputs[0])


def counted(model: ir.Model) -> None:
    """A mask made a count of its ones: right padding alone is masked rightly."""
    mask = model.graph.inputs[1]
    uses = list(mask.uses())
    axis = number(model, "axis", [1], np.int64)
    nodes = [ir.node("ReduceSum", [mask, axis])]
    nodes.append(ir.node("CumSum", [ones(model, mask), number(model, "along", 1, np.int64)]))
    nodes.append(ir.node("LessOrEqual", [nodes[1].outputs[0], nodes[0].outputs[0]]))
    nodes.append(ir.node("Cast", nodes[-1].outputs, {"to": int(ir.DataType.INT64)}))
    at = next(node for node in model.graph if node.op_type == "ConstantOfShape" and node.name == "ones")
    model.graph.insert_after(at, nodes)
    for user, index in uses:
        if user not in nodes and user.op_type != "Shape":
            user.replace_input_with(index, nodes[-1].outputs[0])


def ones(model: ir.Model, like: ir.Value) -> ir.Value:
    shape = ir.node("Shape", [like])
    made = ir.node("ConstantOfShape", shape.outputs, {"value": ir.tensor(np.ones(1, np.int64))}, name="ones")
    model.graph.insert_before(model.graph[0], [shape, made])
    return made.outputs[0]


def four_dimensions(model: ir.Model) -> None:
    """A mask of one's own for each query, as an input."""
    shape = ir.Shape(["batch", 1, "sequence", "sequence"])
    extra = ir.Value(name="extra", type=ir.TensorType(ir.DataType.FLOAT), shape=shape)
    model.graph.inputs.append(extra)
    before(softmax(model), 0, "Add", extra)


def soft_cap(model: ir.Model) -> None:
    before(softmax(model), 0, "Tanh")


def scaled(model: ir.Model) -> None:
    before(softmax(model), 0, "Mul", number(model, "scale", 0.9))


def probabilities_used(model: ir.Model) -> None:
    use(model, softmax(model).outputs[0].name or "")


def key_used(model: ir.Model) -> None:
    bias = model.graph.initializers["model.encoder.layer.0.attention.self.key.bias"]
    (add,) = bias.consumers()
    use(model, add.outputs[0].name or "")


NEAR_MISSES: dict[str, tuple[Callable[[ir.Model], None], str, int]] = {
    "causal": (causal, "masks by position", LAYERS - 1),
    "a window": (window, "masks by position", LAYERS - 1),
    "a mask of four dimensions": (four_dimensions, "'extra'", LAYERS - 1),
    "a soft cap": (soft_cap, "something else than softmax", LAYERS - 1),
    "another scale": (scaled, "something else than softmax", LAYERS - 1),
    "probabilities used elsewhere": (probabilities_used, "probabilities", LAYERS - 1),
    "a key projection used elsewhere": (key_used, "something else uses its projection", LAYERS - 1),
}


@pytest.mark.parametrize("name", NEAR_MISSES)
def test_a_near_miss_is_not_fused(name: str) -> None:
    change, reason, others = NEAR_MISSES[name]
    model = exports.model(PLAIN)
    change(model)
    given = exports.feeds(["input_ids", "attention_mask", "token_type_ids"], length=40)
    given["input_ids"][:, 4::5] = 7
    if name == "a mask of four dimensions":
        given["extra"] = np.random.default_rng(0).normal(size=(5, 1, 40, 40)).astype(np.float32)
    _, report = check(model, given)
    assert not report.complete
    assert report.fused["SelfAttention"] == others
    assert report.found["SelfAttention"] == LAYERS
    refused = [each for each in report.refusals if each.kind == "SelfAttention"]
    assert len(refused) == LAYERS - others
    assert all(reason in each.reason for each in refused), str(report)


def test_a_normalization_over_another_axis_is_left() -> None:
    model = exports.model(DECOMPOSED)
    means = [node for node in model.graph if node.op_type == "ReduceMean"]
    for node in means[2:4]:
        node.attributes["axes"] = ir.AttrInt64s("axes", [1])
    fused, report = check(model, feeds())
    assert report.fused["SkipLayerNormalization"] == 2 * LAYERS - 1
    assert [node.op_type for node in fused.graph].count("ReduceMean") == 2


def test_a_sum_used_elsewhere_is_not_fused_with_its_normalization() -> None:
    model = exports.model(PLAIN)
    normalization = [node for node in model.graph if node.op_type == "LayerNormalization"][1]
    assert normalization.inputs[0] is not None
    use(model, normalization.inputs[0].name or "")
    _, report = check(model, feeds())
    assert [each.kind for each in report.refusals] == ["SkipLayerNormalization"]
    assert "something else uses the sum" in report.refusals[0].reason


def test_a_gelu_that_is_none_is_left() -> None:
    model = exports.model(PLAIN)
    before(first(model, "Erf"), 0, "Mul", number(model, "off", 1.01))
    fused, report = check(model, feeds())
    assert report.fused["BiasGelu"] == LAYERS - 1
    assert [node.op_type for node in fused.graph].count("Erf") == 1


def test_cross_attention_is_refused() -> None:
    model = exports.model(PLAIN)
    weight = model.graph.initializers["model.encoder.layer.1.attention.self.key.bias"]
    (add,) = weight.consumers()
    product = next(value for value in add.inputs if value is not weight)
    assert product is not None
    matmul = product.producer()
    assert matmul is not None
    normalization = first(model, "LayerNormalization")
    matmul.replace_input_with(0, normalization.outputs[0])
    _, report = check(model, feeds())
    assert "projections are of different values" in report.refusals[0].reason


def test_a_slice_of_everything_goes() -> None:
    """As ``hidden[:, 0]`` is exported without optimization: padding can still be removed."""
    model = exports.model(PLAIN)
    pooler = next(node for node in model.graph if node.name == "/model/pooler/Gather")
    ends = {"start": 0, "end": 2**63 - 1, "axis": 0}
    before(pooler, 0, "Slice", *(number(model, name, [value], np.int64) for name, value in ends.items()))
    fused, report = check(model, feeds())
    assert report.complete
    assert "Slice" not in {node.op_type for node in fused.graph}
    assert padding.remove(fused).token_outputs == ("last_hidden_state",)


def test_what_cannot_be_evaluated_is_refused_and_no_error() -> None:
    """DeBERTa picks scores by relative places with ``GatherElements``, beyond what small masks have."""
    model = exports.model(PLAIN)
    softmax = first(model, "Softmax")
    wide = number(model, "places", np.full((5, 4, 12, 12), 11), np.int64)
    before(softmax, 0, "GatherElements", wide, axis=-1)
    _, report = check(model, feeds())
    assert any("GatherElements" in refusal.reason for refusal in report.refusals)


def test_padding_of_a_model_without_a_mask_stays() -> None:
    model = exports.model(PLAIN)
    mask = next(value for value in model.graph.inputs if value.name == "attention_mask")
    ids = next(value for value in model.graph.inputs if value.name == "input_ids")
    shape = ir.node("Shape", [ids])
    ones = ir.node("Expand", [number(model, "one", 1, np.int64), shape.outputs[0]])
    mask.replace_all_uses_with(ones.outputs[0])
    model.graph.insert_before(model.graph[0], [shape, ones])
    model.graph.inputs.remove(mask)
    fused, report = check(model, feeds(("input_ids", "token_type_ids")))
    assert report.complete
    with pytest.raises(UnsupportedModel, match="no input of the model says which tokens are padding"):
        padding.remove(fused)
