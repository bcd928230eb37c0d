"""Long graphs: what is asked of a node takes neither recursion nor the time of all paths that lead to it."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx.parser
import pytest

import isorun
import small_bert

BLOCKS = 250
C = np.array([0.9, 0.8, 1.1, 0.5], np.float32)


def normalized(x: np.ndarray) -> np.ndarray:
    centered = x - x.mean(-1, keepdims=True)
    return x + centered / np.sqrt((centered * centered).mean(-1, keepdims=True) + np.float32(0.1)) * C


KINDS: dict[str, tuple[str, Callable[[np.ndarray], np.ndarray]]] = {
    "a chain": ("{y}a = Add ({x}, c) {y} = Tanh ({y}a)", lambda x: np.tanh(x + C)),
    "residuals": (
        "{y}a = Mul ({x}, c) {y}b = Tanh ({y}a) {y}d = Sub ({x}, {y}b) {y} = Tanh ({y}d)",
        lambda x: np.tanh(x - np.tanh(x * C)),
    ),
    "normalizations": (
        "{y}m = ReduceMean <axes = [-1]> ({x}) {y}s = Sub ({x}, {y}m) {y}p = Mul ({y}s, {y}s) "
        "{y}v = ReduceMean <axes = [-1]> ({y}p) {y}w = Add ({y}v, e) {y}q = Sqrt ({y}w) {y}d = Div ({y}s, {y}q) "
        "{y}g = Mul ({y}d, c) {y} = Add ({x}, {y}g)",
        normalized,
    ),
    "shapes": (
        "{y}s = Shape ({x}) {y}r = Reshape ({x}, {y}s) {y}c = Expand (c, {y}s) {y} = Mul ({y}r, {y}c)",
        lambda x: x * C,
    ),
}


@pytest.mark.sampled(5)
@pytest.mark.parametrize("backend", ["ort-cpu", "openvino", "reference"])
@pytest.mark.parametrize("kind", KINDS)
def test_long_graphs_run(backend: str, kind: str) -> None:
    nodes, computed = KINDS[kind]
    body = " ".join(nodes.format(x=f"x{block}", y=f"x{block + 1}") for block in range(BLOCKS))
    model = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["" : 17]> g (float[n, 4] x0) => (float[n, 4] x{BLOCKS}) '
        f"<float[4] c = {{0.9, 0.8, 1.1, 0.5}}, float e = {{0.1}}> {{ {body} }}"
    )
    x = np.array([[0.1, -0.2, 0.3, 0.4], [1, -1, 2, 0.5]], np.float32)
    expected = x
    for _ in range(BLOCKS):
        expected = computed(expected)
    with isorun.Session(model, backend) as session:
        np.testing.assert_allclose(session.run(None, {"x0": x})[0], expected, rtol=1e-3, atol=1e-4)


def test_deep_encoders_of_large_vocabularies_run(tmp_path: Path) -> None:
    path = small_bert.write(tmp_path / "deep.onnx", num_hidden_layers=24, vocab_size=250_000)
    feeds = small_bert.feeds(np.array([[1] * 7, [1] * 4 + [0] * 3]))
    outputs = []
    for backend in ("ort-cpu", "openvino"):
        with isorun.Session(path, backend, precision="fp32") as session:
            outputs.append(session.run(None, feeds)[0])
    np.testing.assert_allclose(outputs[0], outputs[1], rtol=1e-3, atol=1e-3)
