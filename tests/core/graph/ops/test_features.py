"""A feature of attention is added in one place: the primitive functions. Every dialect then has it, with padding and
without, also where its own kernels do not know it."""

from __future__ import annotations

from collections import Counter

import numpy as np
import onnx_ir as ir
import pytest

import exports
import tiny
from isorun.graph.io import files
from isorun.graph.ops import functions, lower
from isorun.graph.pipeline import fuse
from isorun.graph.transforms import padding_removal
from isorun.graph.transforms.precision import half
from isorun.models import checkpoint
from rewrites import check, number

STEP = "  scores = isorun.fused.Scores <scale: float = @scale> (query, key_transposed)\n"
FEATURE = """
Halved (scores) => (halved) { halved = Mul (scores, 0.5) }
"""


@pytest.fixture
def halved(monkeypatch: pytest.MonkeyPatch) -> None:
    """A new attribute ``halved`` of every attention: half of each score."""
    texts = {name: functions._text(name) for name in (*functions.dialects(), *functions._FEATURES, functions._PACKING)}
    texts |= {f"half/{name}": functions._text(f"half/{name}") for name in functions.dialects()}
    text = texts["primitive"]
    assert STEP in text
    text = text.replace(
        STEP, STEP.replace("scores =", "raw =") + "  scores = isorun.optional.Halved <when: int = @halved> (raw)\n"
    )
    text = text.replace("mask_filter_value: float = @", "halved: int = @halved, mask_filter_value: float = @")
    text = text.replace(", mask_filter_value: float = -", ", halved, mask_filter_value: float = -")
    text = text.replace(" mask_filter_value> (", " halved, mask_filter_value> (")
    text = text.replace("KeyMask <halved: int = @halved, ", "KeyMask <").replace("KeyMask <halved, ", "KeyMask <")
    texts["primitive"] = text + FEATURE
    monkeypatch.setattr(functions, "_text", lambda name: texts[name])


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> ir.Model:
    folder = tmp_path_factory.mktemp("features")
    checkpoint.build(tiny.write_checkpoint(folder / "tiny"), folder / "bert.onnx")
    return files.read(folder / "bert.onnx")


def with_feature(model: ir.Model) -> ir.Model:
    made = model.clone()
    for node in made.graph:
        if node.op_type == functions.ATTENTION:
            node.attributes["halved"] = ir.AttrInt64("halved", 1)
    functions.carry(made)
    return made


@pytest.mark.usefixtures("halved")
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
@pytest.mark.parametrize("packed", [False, True], ids=["padded", "packed"])
@pytest.mark.parametrize("dialect", functions.dialects())
def test_every_dialect_has_a_feature_that_only_the_base_defines(
    bert: ir.Model, dialect: str, packed: bool, precision: str
) -> None:
    model = with_feature(bert)
    feeds = tiny.feeds(3, 9, kind="holes")
    expected = exports.run(model, feeds)
    assert exports.difference(expected, exports.run(bert, feeds)) > 0.01, "the feature changes the answer"
    if packed:
        padding_removal.remove(model)
        expected[0] = np.where(feeds["attention_mask"][:, :, None] != 0, expected[0], 0)
    if precision == "fp16":
        half.convert(model)
    found = exports.run(lower.lower(model, dialect), feeds)
    assert exports.difference(expected, found) < (0.05 if precision == "fp16" else exports.TOLERANCE)


@pytest.mark.usefixtures("halved")
@pytest.mark.parametrize(("dialect", "kernel"), [("com.microsoft", "Attention"), ("onnx", "Attention")])
def test_kernels_that_do_not_know_it_are_used_where_it_is_absent(bert: ir.Model, dialect: str, kernel: str) -> None:
    model = with_feature(bert)
    first, second = (node for node in model.graph if node.op_type == functions.ATTENTION)
    del first.attributes["halved"]
    counts = Counter(node.op_type for node in lower.lower(model, dialect).graph)
    assert (counts[kernel], counts["Softmax"]) == (1, 1)
    assert second.attributes


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
    model = exports.model(export)
    fuse(model)
    if packed:
        padding_removal.remove(model)
    lowered = lower.lower(model, "com.microsoft.cpu").graph
    given = [len(node.inputs) for node in lowered if node.op_type == "MultiHeadAttention"]
    assert given == [3] * kernels


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


@pytest.mark.parametrize("packed", [False, True], ids=["padded", "packed"])
@pytest.mark.parametrize("dialect", functions.dialects())
def test_a_bias_and_a_guard_combine(guarded: ir.Model, dialect: str, packed: bool) -> None:
    """The last of the rows is fully masked."""
    label = "mpnet-torchscript17-eager"
    assert {node.overload for node in guarded.graph if node.op_type == functions.ATTENTION} == {"qkv_bias+bias+guarded"}
    model, feeds = guarded.clone(), exports.given(label)
    expected = exports.run(model, feeds)
    assert exports.difference([exports.answers(label)[0][4:]], [expected[0][4:]]) > 0.01, "the guard has no effect"
    if packed:
        padding_removal.remove(model)
        expected[0] = np.where(feeds["attention_mask"][:, :, None] != 0, expected[0], 0)
    assert exports.difference(expected, exports.run(lower.lower(model, dialect), feeds)) < exports.TOLERANCE
