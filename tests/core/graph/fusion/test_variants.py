"""What people's models have beside the exports in tests/fixtures."""

import numpy as np
import onnx_ir as ir
import pytest
from onnx_ir.passes import common

import exports
import masks
from isorun.errors import UnsupportedModel
from isorun.graph.matching import subgraph
from isorun.graph.ops import functions, lower
from isorun.graph.pipeline import fuse
from isorun.graph.transforms import padding_removal
from rewrites import LAYERS, PLAIN, before, check, dense, fed, feeds, first, number, put, use

LOWEST = float(np.finfo(np.float32).min)


@pytest.mark.parametrize("dtype", [ir.DataType.INT32, ir.DataType.FLOAT, ir.DataType.BOOL])
def test_fuses_masks_of_any_type(dtype: ir.DataType) -> None:
    model = exports.model(PLAIN)
    fed(model, "attention_mask").type = ir.TensorType(dtype)
    fed_arrays = feeds()
    fed_arrays["attention_mask"] = fed_arrays["attention_mask"].astype(dtype.numpy())
    fused, report = check(model, fed_arrays)
    assert report.complete, str(report)
    assert fed(fused, "attention_mask").dtype == dtype


def test_fuses_int32_ids() -> None:
    model = exports.model(PLAIN)
    fed_arrays = feeds()
    for value in model.graph.inputs:
        value.type = ir.TensorType(ir.DataType.INT32)
        fed_arrays[value.name] = fed_arrays[value.name].astype(np.int32)
    fused, report = check(model, fed_arrays)
    assert report.complete, str(report)
    assert all(value.dtype == ir.DataType.INT32 for value in fused.graph.inputs)


def test_other_names_of_dimensions_and_inputs() -> None:
    model = exports.model(PLAIN)
    for value in model.graph.inputs:
        value.name = f"{value.name}:0"
        value.shape = ir.Shape(["N", None])
    fed_arrays = {f"{name}:0": array for name, array in feeds().items()}
    fused, report = check(model, fed_arrays)
    assert report.complete, str(report)
    ids, *others = fused.graph.inputs
    assert ids.shape == ir.Shape(["N", "sequence"]), "it is held to the table of positions, by this name"
    assert all(value.shape == ir.Shape(["N", None]) for value in others)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("label", [PLAIN, "mpnet-dynamo18-eager", "bert-dynamo23-sdpa"])
def test_fuses_a_model_without_a_mask(label: str) -> None:
    """A mask that is part of the model, all ones, is no mask."""
    model = masks.renamed(exports.model(label), None)
    fused, report = check(model, feeds(tuple(value.name or "" for value in model.graph.inputs)))
    assert report.complete, str(report)
    with pytest.raises(UnsupportedModel, match="no input of the model says which tokens are padding"):
        padding_removal.remove(fused)


@pytest.mark.parametrize("combined", [False, True])
def test_fuses_a_mask_computed_from_ids(combined: bool) -> None:
    """Where the id of padding masks, the comparison is the mask, or one of two that make one."""
    model = exports.model(PLAIN)
    ids, mask, _ = model.graph.inputs
    readers = [use for use in mask.uses() if use.node.op_type != "Shape" or not combined]
    at = model.graph[0]
    is_real = put(at, "Not", put(at, "Equal", ids, number(model, "pad", 7, np.int64)))
    keep = put(at, "Cast", is_real, to=int(ir.DataType.INT64))
    if combined:
        keep = put(at, "Mul", mask, keep)
    else:
        model.graph.inputs.remove(mask)
    for node, index in readers:
        node.replace_input_with(index, keep)
    fed_arrays = feeds(tuple(value.name or "" for value in model.graph.inputs))
    fed_arrays["input_ids"][:, 2::3] = 7
    fed_arrays["input_ids"][4] = 7
    _, report = check(model, fed_arrays)
    assert report.complete, str(report)


def test_keeps_a_finite_mask_value() -> None:
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
    assert exports.difference([output[:4] for output in expected], [output[:4] for output in got]) < exports.TOLERANCE
    assert exports.difference(expected, got) < 0.01


def added(softmax: ir.Node) -> ir.Node:
    """The sum of scores and mask, the mask last."""
    assert softmax.inputs[0] is not None
    node = softmax.inputs[0].producer()
    assert node is not None
    assert node.op_type == "Add"
    return node


@pytest.mark.parametrize("factor", [0.37, 3e-5, 4, 0.9999])
def test_keeps_a_scale(factor: float) -> None:
    model = exports.model(PLAIN)
    for softmax in [node for node in model.graph if node.op_type == "Softmax"]:
        before(added(softmax), 0, "Mul", number(model, f"factor_{softmax.name}", factor))
    fused, report = check(model, feeds())
    assert report.complete, str(report)
    scales = [node.attributes["scale"].as_float() for node in fused.graph if node.op_type == functions.ATTENTION]
    np.testing.assert_allclose(scales, [factor * 8**-0.5] * LAYERS, rtol=2e-6)


def test_fuses_attention_with_large_scores() -> None:
    """Trained weights of the normalizations of queries and keys make scores of hundreds, with fewer digits."""
    model = exports.model("qwen3-dynamo18-eager")
    for name, value in model.graph.initializers.items():
        if name.endswith(("q_norm.weight", "k_norm.weight")) and value.const_value is not None:
            value.const_value = ir.tensor(30 * value.const_value.numpy())
    report = fuse(model)
    assert report.fused["SelfAttention"] == LAYERS, str(report)


def test_fuses_embeddings_to_which_a_number_is_added() -> None:
    model = exports.model(PLAIN)
    before(first(model, "Add"), 0, "Add", number(model, "offset", 0.01))
    _, report = check(model, feeds())
    assert report.complete, str(report)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("is_one_value", [False, True], ids=["to the scores", "to the mask"])
def test_fuses_a_causal_mask_added_to_the_mask(is_one_value: bool) -> None:
    """As in CLIP up to transformers 4.57: a query without any key attends to those that one mask leaves out."""
    model = exports.model(PLAIN)
    for softmax in [node for node in model.graph if node.op_type == "Softmax"]:
        at = added(softmax)
        shape = put(at, "Shape", at.inputs[0], start=2)
        full = put(at, "ConstantOfShape", shape, value=ir.tensor(np.full(1, LOWEST, np.float32)))
        above = put(at, "Trilu", full, number(model, "above", 1, np.int64), upper=1)
        if not is_one_value:
            before(softmax, 0, "Add", above)
            continue
        total = before(at, 1, "Add", above)
        before(at, 1, "Reshape", put(at, "Shape", total.outputs[0]))
    fed_arrays = feeds()
    expected = exports.run(model, fed_arrays)
    fused, report = check(model, fed_arrays)
    assert report.complete, str(report)
    assert [
        node.attributes["summed"].as_int()
        for node in fused.graph
        if functions.is_fused(node) and "causal" in node.attributes
    ] == [1] * LAYERS
    padding_removal.remove(fused)
    outputs = exports.run(lower.lower(fused, "com.microsoft.cpu"), fed_arrays)
    real = fed_arrays["attention_mask"] != 0
    assert exports.difference([expected[0][real], expected[1]], [outputs[0][real], outputs[1]]) < exports.TOLERANCE


def test_fuses_merged_batch_and_sequence() -> None:
    """Dense layers and normalizations over (tokens, hidden); the heads alone have batch and sequence apart."""
    model = exports.model(PLAIN)
    tokens = number(model, "tokens", [-1, 32], np.int64)

    def flatten(value: ir.Value) -> ir.Value:
        uses = [use for use in value.uses() if use.node.op_type != "Shape"]
        reshape = ir.node("Reshape", [value, tokens])
        model.graph.insert_after(value.producer(), reshape)
        for reader in uses:
            reader.node.replace_input_with(reader.idx, reshape.outputs[0])
        return reshape.outputs[0]

    for layer in range(LAYERS):
        matmul, _ = dense(model, f"{layer}.attention.output.dense")
        flatten(matmul.inputs[0])
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


def test_fuses_projections_without_biases() -> None:
    model = exports.model(PLAIN)
    for name in ("query", "key", "value"):
        matmul, add = dense(model, f"1.attention.self.{name}")
        ir.convenience.replace_all_uses_with(add.outputs[0], matmul.outputs[0])
    _, report = check(model, feeds())
    assert report.complete, str(report)


@pytest.mark.parametrize("name", ["query", "key", "value"])
def test_fuses_attention_whose_projection_has_another_reader(name: str) -> None:
    model = exports.model(PLAIN)
    _, add = dense(model, f"0.attention.self.{name}")
    use(model, add.outputs[0].name or "")
    fused, report = check(model, feeds())
    assert report.complete, str(report)
    assert [node.op_type for node in fused.graph].count("AttentionCore") == 1


def test_fuses_a_mask_computed_from_a_count() -> None:
    """What is computed from the count masks, right or wrong: it is kept."""
    model = exports.model(PLAIN)
    counted(model)
    fused, report = check(model, feeds())
    assert report.complete, str(report)
    (mask,) = {node.inputs[1] for node in fused.graph if node.op_type == "SelfAttention"}
    assert not mask.is_graph_input()


def test_keeps_hidden_states_that_a_subgraph_reads() -> None:
    """It is lowered with the rest, and what it reads is neither packed nor left out."""
    model = exports.model(PLAIN)
    hidden, pooled = model.graph.outputs

    def branch(name: str) -> ir.Graph:
        mean = ir.node("ReduceMean", [hidden], {"axes": [1], "keepdims": 0})
        mean.outputs[0].name, mean.outputs[0].type = name, ir.TensorType(ir.DataType.FLOAT)
        return ir.Graph([], [mean.outputs[0]], nodes=[mean], name=f"{name}.branch")

    condition = ir.node("Constant", [], {"value": ir.tensor(np.array(True))})
    branches = [ir.AttrGraph(f"{name}_branch", branch(name)) for name in ("then", "else")]
    choice = ir.Node("", "If", condition.outputs, branches)
    choice.outputs[0].name, choice.outputs[0].type = "mean", ir.TensorType(ir.DataType.FLOAT)
    model.graph.extend([condition, choice])
    model.graph.outputs[:] = [choice.outputs[0], pooled]
    expected = exports.run(model, feeds())
    fused, report = check(model, feeds())
    assert report.complete
    assert "SingleQueryAttention" not in {node.op_type for node in fused.graph}
    for dialect in functions.dialects():
        got = exports.run(lower.lower(fused.clone(), dialect), feeds())
        assert exports.difference(expected, got) < exports.TOLERANCE
    with pytest.raises(UnsupportedModel, match=r"ReduceMean\), in a subgraph"):
        padding_removal.remove(fused)


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
    filled = ir.node("ConstantOfShape", shape.outputs, {"value": ir.tensor(np.ones(1, np.int64))}, name="ones")
    model.graph.insert_before(model.graph[0], [shape, filled])
    return filled.outputs[0]


def test_removes_a_full_slice() -> None:
    """As ``hidden[:, 0]`` is exported without optimization: padding can still be removed."""
    model = exports.model(PLAIN)
    pooler = next(node for node in model.graph if node.name == "/model/pooler/Gather")
    ends = {"start": 0, "end": 2**63 - 1, "axis": 0}
    before(pooler, 0, "Slice", *(number(model, name, [value], np.int64) for name, value in ends.items()))
    fused, report = check(model, feeds())
    assert report.complete
    assert "Slice" not in {node.op_type for node in fused.graph}
    assert padding_removal.examine(fused).refusal == ""


def held(node: ir.Node) -> ir.Value:
    """What a Constant node holds."""
    return ir.Value(const_value=node.attributes["value"].as_tensor())


def test_layers_of_images_may_have_other_lengths() -> None:
    """Without a mask, the keys of each layer are those of its own rows."""
    model = exports.model("vit-torchscript17-sdpa")
    second = [node for node in model.graph if node.op_type == "LayerNormalization"][2]
    hidden = second.inputs[0]
    bounds = [number(model, f"bound {at}", [at], np.int64) for at in (0, 9, 1)]
    readers = list(hidden.uses())
    shorter = ir.node("Slice", [hidden, *bounds])
    shorter.outputs[0].type = hidden.type
    for reader in readers:
        reader.node.replace_input_with(reader.idx, shorter.outputs[0])
    model.graph.insert_before(second, shorter)
    for node in model.graph:
        for value in node.outputs:
            value.shape = None
    _, report = check(model, feeds(("pixel_values",)))
    assert report.complete, str(report)
