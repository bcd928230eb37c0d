"""Rotations by positions that are given: fused where they are by these alone, else left with the reason."""

from collections.abc import Callable

import numpy as np
import onnx_ir as ir
import pytest

import exports
from isorun.graph.ops import functions
from rewrites import LAYERS, before, check, fed, number, put

PLAIN = "eurobert-positions-torchscript17-sdpa"
WINDOWED = "modernbert-positions-torchscript17-sdpa"
ROWS = 64  # of a table; the positions that are fed are below it


def given_as(model: ir.Model, operator: str, *others: ir.Value, **attributes: int) -> ir.Value:
    """What stands in place of the positions wherever they are read, made of them."""
    positions = fed(model, "position_ids")
    readers = list(positions.uses())
    replacement = put(model.graph[0], operator, positions, *others, **attributes)
    for reader, index in readers:
        reader.replace_input_with(index, replacement)
    return replacement


def turns(model: ir.Model) -> list[ir.Node]:
    return [node for node in model.graph if node.op_type in ("Cos", "Sin")]


def as_they_come(model: ir.Model) -> None:
    """An export."""


def counted(model: ir.Model) -> None:
    """Positions count the real tokens: there is no input for them."""
    count = given_as(model, "CumSum", number(model, "axis", 1, np.int64)).producer()
    count.replace_input_with(0, fed(model, "attention_mask"))
    model.graph.inputs[:] = [value for value in model.graph.inputs if value.name != "position_ids"]


def of_32_bits(model: ir.Model) -> None:
    fed(model, "position_ids").dtype = ir.DataType.INT32
    given_as(model, "Cast", to=int(ir.DataType.INT64))


def clipped(model: ir.Model) -> None:
    given_as(model, "Min", number(model, "last", [[9]], np.int64))


def by_table(model: ir.Model) -> None:
    """Cosines and sines are looked up in tables whose angles are in proportion to no position."""
    for index, turn in enumerate(turns(model)):
        angles = np.random.default_rng(index // 2).normal(size=(ROWS, 4)).repeat(2, 0).reshape(ROWS, 8)
        table = np.cos(angles) if turn.op_type == "Cos" else np.sin(angles)
        looked_up = put(turn, "Gather", number(model, f"table.{index}", table), fed(model, "position_ids"), axis=0)
        turn.outputs[0].replace_all_uses_with(looked_up)


def squared(model: ir.Model) -> None:
    """The angles grow with the square of the position."""
    cast = next(node for node in model.graph if node.op_type == "Cast" and "rotary" in (node.outputs[0].name or ""))
    value = cast.outputs[0]
    for reader, index in list(value.uses()):
        before(reader, index, "Mul", value)


def limited(model: ir.Model) -> None:
    """The angles stop growing at a position that the samples do not reach."""
    for node in [node for node in model.graph if node.op_type == "Cast" and "rotary" in (node.outputs[0].name or "")]:
        for reader, index in list(node.outputs[0].uses()):
            before(reader, index, "Min", number(model, "limit", 50.0))


def with_tokens(model: ir.Model) -> None:
    """The angles depend on the ids of tokens too."""
    at = model.graph[0]
    numbers = put(at, "Cast", fed(model, "input_ids"), to=int(ir.DataType.FLOAT))
    column = put(at, "Unsqueeze", numbers, number(model, "columns", [-1], np.int64))
    for turn in turns(model):
        before(turn, 0, "Add", column)


FUSED = {
    "plain": (PLAIN, as_they_come),
    "windowed": (WINDOWED, as_they_come),
    "counted": (PLAIN, counted),
    "of 32 bits": (PLAIN, of_32_bits),
    "clipped": (WINDOWED, clipped),
    "by table": (PLAIN, by_table),
}
REFUSED: dict[str, tuple[Callable[[ir.Model], None], str]] = {
    "squared": (squared, "proportional"),
    "limited": (limited, "proportional"),
    "with tokens": (with_tokens, "'input_ids'"),
}


def feeds_of(model: ir.Model) -> exports.Feeds:
    feeds = exports.feeds([value.name or "" for value in model.graph.inputs])
    return {value.name or "": feeds[value.name or ""].astype(value.dtype.numpy()) for value in model.graph.inputs}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", FUSED)
def test_fuses_rotations_by_positions_that_are_given(name: str) -> None:
    label, change = FUSED[name]
    model = exports.model(label)
    change(model)
    fused, report = check(model, feeds_of(model))
    assert report.complete, str(report)
    assert sum(node.op_type == functions.CORE for node in fused.graph) == LAYERS


def test_fuses_a_table_that_is_cut_to_the_length_of_the_row() -> None:
    """As in Qwen2 and Mistral of transformers 4.41: the export knows no position beyond the row, the fused form
    does."""
    model = exports.model(PLAIN)
    by_table(model)
    length = put(model.graph[0], "Shape", model.graph.inputs[0], start=1, end=2)
    zero = number(model, "first", [0], np.int64)
    for node in [node for node in model.graph if node.op_type == "Gather" and "table" in (node.inputs[0].name or "")]:
        before(node, 0, "Slice", zero, length, zero)
    feeds = feeds_of(model)
    feeds["position_ids"] %= feeds["position_ids"].shape[1]
    fused, report = check(model, feeds)
    assert report.complete, str(report)
    assert sum(node.op_type == functions.CORE for node in fused.graph) == LAYERS


@pytest.mark.parametrize("name", REFUSED)
def test_keeps_other_rotations(name: str) -> None:
    change, reason = REFUSED[name]
    model = exports.model(PLAIN)
    change(model)
    _, report = check(model, feeds_of(model))
    assert report.fused["SelfAttention"] == 0
    refused = [refusal for refusal in report.refusals if refusal.kind == "SelfAttention"]
    assert len(refused) == LAYERS
    assert all(reason in refusal.reason for refusal in refused), str(report)
