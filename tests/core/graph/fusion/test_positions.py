"""Rows of positions that are cut from a table, and what only looks like them: the sum is then left, with the reason."""

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import numpy_helper

import exports
import onnx_text
from isorun.graph.io import files
from isorun.graph.matching.report import FusionReport
from isorun.graph.pipeline import fuse

RNG = np.random.default_rng(0)
WEIGHTS = {
    name: RNG.standard_normal(shape).astype(np.float32)
    for name, shape in {
        **{"word": (50, 8), "place": (40, 8), "deep": (1, 40, 8), "type": (2, 8), "task": (3, 8), "row": (1, 1, 8)},
        **{"g": (8,), "c": (8,)},
    }.items()
}
WEIGHTS["same"] = np.repeat(WEIGHTS["row"], 7, axis=1)
LENGTH = "n = Shape<start=1, end=2>(ids) zero = Constant<value = int64[1] {0}>() one = Constant<value = int64[1] {1}>()"


def model(rows: str, folder: Path, others: tuple[str, ...] = (), sizes: str = "b,s") -> ir.Model:
    body = f"w = Gather(word, ids) {LENGTH} {rows} s = Add(w, p) y = LayerNormalization<axis=-1>(s, g, c)"
    inputs = ", ".join(f"int64[{sizes}] {name}" for name in ("ids", *others))
    proto = onnx_text.graph(f"e ({inputs}) => (float[{sizes},8] y) {{ {body} }}")
    used = {name for node in proto.graph.node for name in node.input}
    proto.graph.initializer.extend(numpy_helper.from_array(WEIGHTS[name], name) for name in WEIGHTS if name in used)
    onnx.save(proto, folder / "model.onnx")
    return files.read(folder / "model.onnx")


def checked(embedding: ir.Model) -> FusionReport:
    """The report of a model's fusion, which changes no answer."""
    random = np.random.default_rng(1)
    rows = {"ids": 50, "positions": 40, "types": 2, "tasks": 3}
    feeds = {value.name: random.integers(0, rows[value.name], (3, 7)) for value in embedding.graph.inputs}
    (before,) = exports.run(embedding, feeds)
    report = fuse(embedding)
    np.testing.assert_allclose(exports.run(embedding, feeds)[0], before, atol=1e-5)
    return report


@pytest.mark.parametrize(
    ("rows", "fused"),
    [
        ("p = Slice(place, zero, n, zero)", 1),
        ("p = Slice(deep, zero, n, one)", 1),
        ("r = Slice(place, zero, n, zero) p = Unsqueeze(r, zero)", 1),
        ("m = Neg(n) e = Constant<value = int64[1] {9999}>() p = Slice(place, m, e, zero)", 0),
        ("k = Add(n, one) p = Slice(place, one, k, zero)", 0),
        ("r = Slice(place, zero, n, zero) p = Neg(r)", 0),
        ("f = Cast<to=1>(n) p = Mul(f, c)", 0),
        ("f = Cast<to=1>(n) p = Squeeze(f)", 0),
    ],
    ids=["rows", "of three dimensions", "unsqueezed", "the last", "from the second", "negated", "a vector", "a number"],
)
def test_recognizes_the_first_rows_of_a_position_table(rows: str, fused: int, tmp_path: Path) -> None:
    report = checked(model(rows, tmp_path))
    assert report.fused["EmbedLayerNormalization"] == fused
    assert [refusal.kind for refusal in report.refusals] == ["EmbedLayerNormalization"] * (1 - fused)


@pytest.mark.parametrize(
    ("others", "inputs"),
    [(("positions",), 4), (("types", "positions"), 6), (("types", "positions", "tasks"), 9), (("types", "tasks"), 6)],
    ids=["positions", "types and positions", "types, positions and tasks", "types and tasks"],
)
def test_fuses_tables_that_inputs_index(others: tuple[str, ...], inputs: int, tmp_path: Path) -> None:
    """Positions may be an input, and a model may have several kinds of types (ERNIE)."""
    tables = {"positions": "place", "types": "type", "tasks": "task"}
    terms = [f"r0 = Gather({tables[others[0]]}, {others[0]})"]
    for count, name in enumerate(others[1:], start=1):
        terms.append(f"t{count} = Gather({tables[name]}, {name}) r{count} = Add(r{count - 1}, t{count})")
    report = checked(model(" ".join((*terms, f"p = Identity(r{len(others) - 1})")), tmp_path, others))
    assert report.fused["EmbedLayerNormalization"] == 1, str(report)


def test_a_constant_with_the_same_row_for_each_position_is_no_table(tmp_path: Path) -> None:
    """What exporters fold token types to, in a model of one size."""
    report = checked(model("r = Gather(place, positions) p = Add(r, same)", tmp_path, ("positions",), "3,7"))
    assert report.fused["EmbedLayerNormalization"] == 1, str(report)
