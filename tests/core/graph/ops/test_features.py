"""Features of attention together with a dialect's own kernels, with padding and without."""

import numpy as np
import onnx_ir as ir
import pytest

import exports
from isorun.graph.ops import functions, lower
from isorun.graph.transforms import padding_removal
from rewrites import check, number


@pytest.mark.parametrize(
    ("export", "packed", "kernels"),
    [
        ("nomicbert-dynamo18-sdpa", False, 3),
        ("nomicbert-dynamo18-sdpa", True, 12),
        ("eurobert-dynamo18-sdpa", False, 3),
    ],
    ids=["padded", "packed", "grouped queries"],
)
def test_kernels_on_the_cpu_get_no_mask(export: str, packed: bool, kernels: int) -> None:
    """Without it, they compute a block of scores at a time."""
    model = exports.fused(export)
    if packed:
        padding_removal.remove(model)
    lowered = lower.lower(model, "com.microsoft.cpu").graph
    input_counts = [len(node.inputs) for node in lowered if node.op_type == "MultiHeadAttention"]
    assert input_counts == [3] * kernels


def with_guards(label: str) -> ir.Model:
    """An export in which the probabilities of a fully masked row are zeros, as PyTorch's guard makes them."""
    model = exports.model(label)
    graph = model.graph
    mask = next(value for value in graph.inputs if value.name == "attention_mask")
    row, score = (number(model, name, axes, np.int64) for name, axes in (("row", [1]), ("score", [1, 2])))
    keys = ir.node("ReduceSum", [mask, row], {"keepdims": 1})
    attends = ir.node("Cast", keys.outputs, {"to": int(ir.DataType.BOOL)})
    any_key = ir.node("Unsqueeze", [attends.outputs[0], score])
    graph.insert_before(graph[0], [keys, attends, any_key])
    for node in [node for node in graph if node.op_type == "Softmax"]:
        uses = list(node.outputs[0].uses())
        guard = ir.node("Where", [any_key.outputs[0], node.outputs[0], number(model, "nothing", 0.0)])
        graph.insert_after(node, guard)
        for use in uses:
            use.node.replace_input_with(use.idx, guard.outputs[0])
    return model


@pytest.fixture(scope="module")
def guarded() -> ir.Model:
    fused, report = check(with_guards("mpnet-torchscript17-eager"), exports.given("mpnet-torchscript17-eager"))
    assert report.complete
    return fused


@pytest.mark.sampled(7)
@pytest.mark.parametrize("packed", [False, True], ids=["padded", "packed"])
@pytest.mark.parametrize("dialect", functions.dialects())
def test_a_bias_and_a_guard_combine(guarded: ir.Model, dialect: str, packed: bool) -> None:
    """The last of the rows is fully masked."""
    label = "mpnet-torchscript17-eager"
    overloads = [node.overload.split("+") for node in guarded.graph if node.op_type == functions.ATTENTION]
    assert overloads
    assert all({"qkv_bias", "bias", "guarded"} <= {*parts} for parts in overloads)
    model, feeds = guarded.clone(), exports.given(label)
    expected = exports.run(model, feeds)
    assert exports.difference([exports.answers(label)[0][4:]], [expected[0][4:]]) > 0.01, "the guard has no effect"
    if packed:
        padding_removal.remove(model)
        expected[0] = np.where(feeds["attention_mask"][:, :, None] != 0, expected[0], 0)
    assert exports.difference(expected, exports.run(lower.lower(model, dialect), feeds)) < exports.TOLERANCE
