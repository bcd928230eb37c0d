"""What the samples of fusion do not show by themselves: longer rows, and larger numbers."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

import exports
from isorun.graph import model_info
from isorun.graph.pipeline import fuse
from rewrites import LAYERS, PLAIN, before, check, dense, first, number, put

NAMES = ["input_ids", "attention_mask", "token_type_ids"]
LENGTH = 40


def bounded_queries(model: ir.Model) -> None:
    _, add = dense(model, "0.attention.self.query")
    (reshape,) = (node for node in add.outputs[0].consumers() if node.op_type == "Reshape")
    before(reshape, 0, "Clip", number(model, "low", -5.0), number(model, "high", 5.0))


def bounded_scores(model: ir.Model) -> None:
    before(first(model, "Softmax"), 0, "Max", number(model, "least", -50.0))


def length(model: ir.Model, at: ir.Node) -> ir.Value:
    """The number of tokens of a row, (1) int64, computed before a node."""
    return put(at, "Shape", model.graph.inputs[0], start=1, end=2)


def scores_by_length(model: ir.Model) -> None:
    """Scores grow by the length, in rows longer than 20."""
    at = first(model, "Softmax")
    share = put(at, "Div", put(at, "Cast", length(model, at), to=1), number(model, "trained", 20.0))
    before(at, 0, "Mul", put(at, "Max", share, number(model, "least", 1.0)))


def values_by_place(model: ir.Model) -> None:
    """Values after the 20th are larger."""
    table = np.ones((64, 1), np.float32)
    table[20:] = 2
    _, add = dense(model, "0.attention.self.value")
    (reshape,) = (node for node in add.outputs[0].consumers() if node.op_type == "Reshape")
    zero, count = number(model, "begin", [0], np.int64), length(model, reshape)
    before(reshape, 0, "Mul", put(reshape, "Slice", number(model, "by_place", table), zero, count))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (bounded_queries, "it bounds values (Clip)"),
        (bounded_scores, "it bounds values (Max)"),
        (scores_by_length, "in another way in longer rows"),
        (values_by_place, "in another way in longer rows"),
    ],
)
def test_an_attention_that_differs_beyond_the_samples_is_kept(change: Callable[[ir.Model], None], reason: str) -> None:
    model = exports.model(PLAIN)
    change(model)
    _, report = check(model, exports.feeds(NAMES, length=LENGTH))
    assert report.fused["SelfAttention"] == LAYERS - 1
    assert reason in report.refusals[0].reason


def test_a_bound_at_the_lowest_number_is_none() -> None:
    model = exports.model(PLAIN)
    before(first(model, "Softmax"), 0, "Max", number(model, "least", np.finfo(np.float32).min))
    _, report = check(model, exports.feeds(NAMES, length=LENGTH))
    assert report.complete, str(report)


def positions(model: ir.Model) -> ir.Node:
    """What looks up the rows of positions."""
    return lookup(model, "position_embeddings")


def lookup(model: ir.Model, table: str) -> ir.Node:
    gathers = (node for node in model.graph if node.op_type == "Gather")
    return next(node for node in gathers if table in str(node.inputs[0].name))


@pytest.mark.parametrize(("operator", "last"), [("Min", 9), ("Mod", 10)])
def test_positions_in_order_up_to_a_place(operator: str, last: int) -> None:
    model = exports.model(PLAIN)
    before(positions(model), 1, operator, number(model, "last", last, np.int64))
    _, report = check(model, exports.feeds(NAMES, length=LENGTH))
    assert report.complete, str(report)


def test_positions_from_the_end_keep_padding() -> None:
    """In a batch with longer rows, they would be others."""
    model = exports.model(PLAIN)
    rows = positions(model)
    last = put(rows, "Sub", length(model, rows), number(model, "first", 1, np.int64))
    rows.replace_input_with(1, put(rows, "Sub", last, rows.inputs[1]))
    fused, _ = check(model, exports.feeds(NAMES, length=LENGTH))
    assert "computes with the length of the rows" in model_info.describe(fused).keeps_padding


def test_the_limit_of_positions_counted_from_the_mask() -> None:
    model = exports.model(PLAIN)
    rows = positions(model)
    mask, table = model.graph.inputs[1], rows.inputs[0]
    count = put(rows, "CumSum", mask, number(model, "along", 1, np.int64))
    rows.replace_input_with(1, put(rows, "Mul", count, mask))
    assert fuse(model).complete
    assert table.shape[0] - 1 in model_info.describe(model).limits.values()


def test_token_types_by_place(tmp_path: Path) -> None:
    """The same in all rows of a batch, (1, sequence)."""
    model = exports.model(PLAIN)
    place = positions(model).inputs[1]
    types = lookup(model, "token_type_embeddings")
    late = put(types, "Greater", place, number(model, "border", 20, np.int64))
    types.replace_input_with(1, put(types, "Cast", late, to=7))
    feeds = exports.feeds(NAMES, length=LENGTH)
    expected = exports.run(model, feeds)
    assert fuse(model).complete
    result = exports.run_lowered("ort-cpu", "com.microsoft.cpu", model, feeds, tmp_path / "model.onnx")
    assert exports.difference(expected, result) < exports.TOLERANCE
