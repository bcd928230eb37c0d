"""Weights that are stored several times become one, and others stay."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from isorun.graph.canonicalize.dedup_weights import deduplicate
from isorun.graph.matching import subgraph


def graph(*arrays: np.ndarray) -> ir.Graph:
    """One Add for each array."""
    x = ir.Value(name="x", type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape([None, 300]))
    made = ir.Graph([x], [], nodes=[], opset_imports={"": 17}, name="g")
    for index, array in enumerate(arrays):
        node = ir.node("Add", [x, subgraph.constant(made, f"w{index}", ir.tensor(array))])
        made.append(node)
        made.outputs.append(node.outputs[0])
    return made


def weights(made: ir.Graph) -> list[str | None]:
    return [node.inputs[1].name for node in made if node.inputs[1] is not None]


def test_merges_equal_weights() -> None:
    one = np.arange(3000, dtype=np.float32).reshape(10, 300)
    made = graph(one, one.copy(), one + 1, one.reshape(300, 10).T.copy(), one.astype(np.float64))
    deduplicate(made)
    assert weights(made) == ["w0", "w0", "w2", "w3", "w4"]


def test_merges_equal_weights_that_are_transposed() -> None:
    """As an export without constant folding has them, once its transpositions are folded."""
    one = np.arange(3000, dtype=np.float32).reshape(300, 10)
    made = graph(one.T, one.T, one.T.copy())
    deduplicate(made)
    assert weights(made) == ["w0", "w0", "w0"]


def test_keeps_weights_that_differ_between_samples() -> None:
    one = np.zeros((10, 300), np.float32)
    other = one.copy()
    other.flat[1] = 1
    made = graph(one, other, other.copy())
    deduplicate(made)
    assert weights(made) == ["w0", "w1", "w1"]


def test_keeps_overridable_weights() -> None:
    one = np.zeros((10, 300), np.float32)
    made = graph(one, one.copy())
    made.inputs.append(made.initializers["w1"])
    deduplicate(made)
    assert weights(made) == ["w0", "w1"]


def test_keeps_string_weights() -> None:
    made = graph(np.zeros((10, 300), np.float32))
    words = ir.StringTensor([b"a" * 2000], shape=ir.Shape([1]), name="words")
    subgraph.constant(made, "words", words)
    deduplicate(made)
    assert weights(made) == ["w0"]
