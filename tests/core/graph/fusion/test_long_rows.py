"""What models of people's own do in rows longer than the samples, or with numbers that these lack."""

from collections.abc import Callable

import numpy as np
import onnx_ir as ir
import pytest

import exports
from isorun.graph.pipeline import fuse
from rewrites import LAYERS, PLAIN, before, check, fed, first, number, put

NAMES = ["input_ids", "attention_mask", "token_type_ids"]


def softmax(model: ir.Model) -> ir.Node:
    return first(model, "Softmax")


def best_sixteen(model: ir.Model) -> None:
    """Each query attends to the 16 keys with the highest scores."""
    node = softmax(model)
    scores = node.inputs[0]
    count = put(node, "Min", put(node, "Shape", scores, start=3, end=4), number(model, "most", [16], np.int64))
    best = put(node, "TopK", scores, count, outputs=2, axis=-1)
    low = put(node, "Add", put(node, "Sub", scores, scores), number(model, "low", -1e30))
    node.replace_input_with(0, put(node, "ScatterElements", low, best.producer().outputs[1], best, axis=3))


def first_sixteen(model: ir.Model) -> None:
    """Each query attends to the first 16 keys, without a mask."""
    node = softmax(model)
    node.replace_input_with(0, node.inputs[0].producer().inputs[0])
    product = next(use for use in node.outputs[0].consumers() if use.op_type == "MatMul")
    for index, axis in ((0, 3), (1, 2)):
        numbers = [number(model, f"{axis}.{value}", [value], np.int64) for value in (0, 16, axis)]
        product.replace_input_with(index, put(product, "Slice", product.inputs[index], *numbers))


def relu(model: ir.Model) -> None:
    before(before(softmax(model), 0, "Add", number(model, "least", 25.0)).outputs[0].consumers()[0], 0, "Relu")


def guard_of_two(model: ir.Model) -> None:
    """Rows of fewer than two tokens give zeros."""
    node = softmax(model)
    product = next(use for use in node.outputs[0].consumers() if use.op_type == "MatMul")
    mask = fed(model, "attention_mask")
    count = put(product, "ReduceSum", mask, number(model, "along", [1], np.int64), keepdims=1)
    some = put(product, "Cast", put(product, "Greater", count, number(model, "one", 1, np.int64)), to=1)
    factor = put(product, "Reshape", some, number(model, "shape", [-1, 1, 1, 1], np.int64))
    product.replace_input_with(0, put(product, "Mul", node.outputs[0], factor))


@pytest.mark.parametrize("change", [best_sixteen, first_sixteen, relu, guard_of_two])
def test_attention_of_another_kind_is_kept(change: Callable[[ir.Model], None]) -> None:
    model = exports.model(PLAIN)
    change(model)
    feeds = exports.feeds(NAMES, length=40)
    feeds["attention_mask"][1, 1:] = 0
    _, report = check(model, feeds)
    assert report.fused["SelfAttention"] == LAYERS - 1


@pytest.mark.parametrize(("tokens", "local"), [(1500, 2), (2047, 0)])
def test_window_beyond_the_longest_mask_that_is_tried(tokens: int, local: int) -> None:
    model = exports.model("modernbert-torchscript17-sdpa")
    constant = next(node for node in model.graph if node.outputs[0].name == "/model/Constant_32_output_0")
    old = constant.attributes["value"].value.numpy()
    constant.attributes["value"] = ir.AttrTensor("value", ir.tensor(np.full(old.shape, tokens, old.dtype)))
    fuse(model)
    windows = [node.attributes.get_int("window", None) for node in model.graph if "Attention" in node.op_type]
    assert sum(width is not None for width in windows) == local


def test_mask_of_pairs_of_inputs_that_are_cut() -> None:
    """``input_ids[:, :16]``, and a mask that is expanded to each query: the one that is fed is longer than the rows."""
    model = exports.model(PLAIN)
    at = model.graph[0]
    numbers = {value: number(model, f"cut.{value}", [value], np.int64) for value in (0, 1, 2, 16)}
    cut = {}
    for name in NAMES:
        uses = [*fed(model, name).uses()]
        cut[name] = put(at, "Slice", fed(model, name), numbers[0], numbers[16], numbers[1])
        for node, index in uses:
            node.replace_input_with(index, cut[name])
    keys = put(at, "Unsqueeze", put(at, "Unsqueeze", cut["attention_mask"], numbers[1]), numbers[2])
    length = put(at, "Shape", cut["input_ids"], start=1, end=2)
    sizes = put(at, "Concat", numbers[1], numbers[1], length, numbers[1], axis=0)
    attends = put(at, "Cast", put(at, "Expand", keys, sizes), to=9)
    mask = put(at, "Where", attends, number(model, "zero", 0.0), number(model, "low", -1e30))
    for node in [node for node in model.graph if node.op_type == "Softmax"]:
        node.inputs[0].producer().replace_input_with(1, mask)
    for length_of_rows in (5, 40):
        _, report = check(model, exports.feeds(NAMES, length=length_of_rows))
    assert report.fused["SelfAttention"] == LAYERS


def test_angles_that_change_in_long_rows() -> None:
    """As those of dynamic NTK and LongRoPE."""
    model = exports.model("eurobert-torchscript17-eager")
    assert exports.fusion("eurobert-torchscript17-eager")[1].fused["SelfAttention"]
    node = next(node for node in model.graph if node.op_type in ("Cos", "Sin"))
    ids = fed(model, "input_ids")
    length = put(node, "Shape", ids, start=1, end=2)
    is_long = put(node, "Greater", length, number(model, "trained", [350], np.int64))
    factor = put(node, "Where", is_long, number(model, "half", 0.5), number(model, "whole", 1.0))
    angles = put(node, "Mul", node.inputs[0], factor)
    for use in [node for node in model.graph if node.op_type in ("Cos", "Sin")]:
        use.replace_input_with(0, angles)
    _, report = check(model, exports.feeds(["input_ids", "attention_mask"], length=360))
    assert not report.fused["SelfAttention"]


def test_angles_that_end_at_a_place() -> None:
    """Rotary positions that are clipped, beyond the length at which rates are told apart."""
    model = exports.model("eurobert-torchscript17-eager")
    nodes = [node for node in model.graph if node.op_type in ("Cos", "Sin")]
    least, most = number(model, "least", -411.0), number(model, "most", 411.0)  # the fastest turn by 1 for each place
    angles = put(nodes[0], "Clip", nodes[0].inputs[0], least, most)
    for node in nodes:
        node.replace_input_with(0, angles)
    _, report = check(model, exports.feeds(["input_ids", "attention_mask"], length=450))
    assert not report.fused["SelfAttention"]


@pytest.mark.parametrize("place", [5000.0, 300.0])
def test_factor_that_begins_at_a_place(place: float) -> None:
    """The temperature of Llama 4: 1 up to a place, in floating point."""
    model = exports.model(PLAIN)
    node = softmax(model)
    ids = fed(model, "input_ids")
    zero, one = number(model, "zero", 0, np.int64), number(model, "one", 1, np.int64)
    along = number(model, "along", [0], np.int64)
    length = put(node, "Squeeze", put(node, "Shape", ids, start=1, end=2), along)
    places = put(node, "Cast", put(node, "Range", zero, length, one), to=1)
    steps = put(node, "Floor", put(node, "Div", places, number(model, "place", place)))
    factor = put(
        node, "Add", put(node, "Log", put(node, "Add", steps, number(model, "a", 1.0))), number(model, "b", 1.0)
    )
    by_query = put(node, "Unsqueeze", factor, number(model, "last", [-1], np.int64))
    query = node.inputs[0]
    while query.producer().op_type != "MatMul":
        query = query.producer().inputs[0]
    product = query.producer()
    product.replace_input_with(0, put(product, "Mul", product.inputs[0], by_query))
    assert fuse(model).fused["SelfAttention"] == LAYERS - 1


def test_soft_caps_are_refused_however_high() -> None:
    model = exports.model("bert-dynamo23-sdpa")
    caps = 0
    for node in model.graph:
        if node.op_type == "Attention":
            node.attributes["softcap"] = ir.AttrFloat32("softcap", 1000.0)
            caps += 1
    assert caps == LAYERS
    assert not fuse(model).fused["SelfAttention"]


def test_hidden_states_of_all_rows_in_one() -> None:
    """(1, B S, W), with attention over (B, S)."""
    model = exports.model(PLAIN)
    assert exports.fusion(PLAIN)[1].fused["SelfAttention"] == LAYERS
    node = first(model, "MatMul")
    hidden = node.inputs[0]
    merged = put(node, "Reshape", hidden, number(model, "merged", [1, -1, 32], np.int64))
    for use in [use for use in hidden.consumers() if use.op_type == "MatMul"]:
        use.replace_input_with(0, merged)
    check(model, exports.feeds(NAMES, length=8))


def test_buckets_that_begin_far_away() -> None:
    model = exports.model("t5-torchscript17-eager")
    name = "/model/encoder/block.0/layer.0/SelfAttention/Constant_20_output_0"
    constant = next(node for node in model.graph if node.outputs[0].name == name)
    old = constant.attributes["value"].value.numpy()
    far = np.full(old.shape, np.log(200_000 / 2), old.dtype)
    constant.attributes["value"] = ir.AttrTensor("value", ir.tensor(far))
    check(model, exports.feeds(["input_ids", "attention_mask"], length=700))


def test_positions_that_skip_another_id() -> None:
    model = exports.model("roberta-torchscript17-eager")
    equal = first(model, "Equal")
    (inverse,) = equal.outputs[0].consumers()
    ids = fed(model, "input_ids")
    is_mask = put(inverse, "Equal", ids, number(model, "mask", 50, np.int64))
    inverse.replace_input_with(0, put(inverse, "Or", equal.outputs[0], is_mask))
    feeds = exports.feeds([value.name for value in model.graph.inputs])
    feeds["input_ids"][:, 2] = 50
    check(model, feeds)


@pytest.mark.parametrize("length", [250, 401])
def test_condition_on_lengths_beyond_the_samples(length: int) -> None:
    """``If`` of whether a row has at most 400 tokens."""
    model = exports.model("t5-torchscript17-eager")
    output = model.graph.outputs[0]
    ids = fed(model, "input_ids")
    branches = {}
    for name, operator in (("then_branch", "Identity"), ("else_branch", "Neg")):
        node = ir.node(operator, [output])
        node.outputs[0].name, node.outputs[0].type = f"{name}.y", output.type
        branches[name] = ir.AttrGraph(name, ir.Graph([], node.outputs, nodes=[node], name=name))
    tokens = ir.node("Shape", [ids], {"start": 1, "end": 2})
    shorter = ir.node("Min", [tokens.outputs[0], number(model, "most", [400], np.int64)])
    condition = ir.node("Equal", [tokens.outputs[0], shorter.outputs[0]])
    chosen = ir.Node("", "If", condition.outputs, attributes=branches.values(), num_outputs=1)
    chosen.outputs[0].name, chosen.outputs[0].type = "chosen", output.type
    model.graph.extend([tokens, shorter, condition, chosen])
    model.graph.outputs[:] = [chosen.outputs[0]]
    fused, _ = check(model, exports.feeds(["input_ids", "attention_mask"], length=length))
    assert any(node.op_type == "If" for node in fused.graph)
