"""Rows of positions that are cut from a table, and what only looks like them: the sum is then left, with the reason."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from onnx import numpy_helper

import onnx_text
from isorun.graph.io import files
from isorun.graph.pipeline import fuse

RNG = np.random.default_rng(0)
WEIGHTS = {
    name: RNG.standard_normal(shape).astype(np.float32)
    for name, shape in {"word": (50, 8), "place": (40, 8), "deep": (1, 40, 8), "g": (8,), "c": (8,)}.items()
}
LENGTH = "n = Shape<start=1, end=2>(ids) zero = Constant<value = int64[1] {0}>() one = Constant<value = int64[1] {1}>()"


def model(rows: str, folder: Path) -> ir.Model:
    body = f"w = Gather(word, ids) {LENGTH} {rows} s = Add(w, p) y = LayerNormalization<axis=-1>(s, g, c)"
    proto = onnx_text.graph(f"e (int64[b,s] ids) => (float[b,s,8] y) {{ {body} }}")
    used = {name for node in proto.graph.node for name in node.input}
    proto.graph.initializer.extend(numpy_helper.from_array(WEIGHTS[name], name) for name in WEIGHTS if name in used)
    onnx.save(proto, folder / "model.onnx")
    return files.read(folder / "model.onnx")


def run(content: bytes) -> np.ndarray:
    ids = np.random.default_rng(1).integers(0, 50, (3, 7))
    return onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"]).run(None, {"ids": ids})[0]


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
    made = model(rows, tmp_path)
    before = run((tmp_path / "model.onnx").read_bytes())
    report = fuse(made)
    assert report.fused["EmbedLayerNormalization"] == fused
    assert [refusal.kind for refusal in report.refusals] == ["EmbedLayerNormalization"] * (1 - fused)
    after = run(ir.serde.serialize_model(made).SerializeToString())
    np.testing.assert_allclose(after, before, atol=1e-5)
