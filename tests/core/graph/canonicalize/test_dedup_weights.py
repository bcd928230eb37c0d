"""Weights that are stored several times become one, and others stay."""

import numpy as np
import onnx_ir as ir

from isorun.graph.canonicalize.dedup_weights import deduplicate
from isorun.graph.matching import subgraph


def graph(*arrays: np.ndarray) -> ir.Graph:
    """One Add for each array."""
    x = ir.Value(name="x", type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape([None, 300]))
    sums = ir.Graph([x], [], nodes=[], opset_imports={"": 17}, name="g")
    for index, array in enumerate(arrays):
        node = ir.node("Add", [x, subgraph.constant(sums, f"w{index}", ir.tensor(array))])
        sums.append(node)
        sums.outputs.append(node.outputs[0])
    return sums


def weights(sums: ir.Graph) -> list[str | None]:
    return [node.inputs[1].name for node in sums if node.inputs[1] is not None]


def test_merges_equal_weights() -> None:
    array = np.arange(3000, dtype=np.float32).reshape(10, 300)
    sums = graph(array, array.copy(), array + 1, array.reshape(300, 10).T.copy(), array.astype(np.float64))
    deduplicate(sums)
    assert weights(sums) == ["w0", "w0", "w2", "w3", "w4"]


def test_merges_equal_weights_that_are_transposed() -> None:
    """As an export without constant folding has them, once its transpositions are folded."""
    array = np.arange(3000, dtype=np.float32).reshape(300, 10)
    sums = graph(array.T, array.T, array.T.copy())
    deduplicate(sums)
    assert weights(sums) == ["w0", "w0", "w0"]


def test_keeps_weights_that_differ_between_samples() -> None:
    zeros = np.zeros((10, 300), np.float32)
    changed = zeros.copy()
    changed.flat[1] = 1
    sums = graph(zeros, changed, changed.copy())
    deduplicate(sums)
    assert weights(sums) == ["w0", "w1", "w1"]


def test_keeps_overridable_weights() -> None:
    zeros = np.zeros((10, 300), np.float32)
    sums = graph(zeros, zeros.copy())
    sums.inputs.append(sums.initializers["w1"])
    deduplicate(sums)
    assert weights(sums) == ["w0", "w1"]


def test_keeps_string_weights() -> None:
    sums = graph(np.zeros((10, 300), np.float32))
    words = ir.StringTensor([b"a" * 2000], shape=ir.Shape([1]), name="words")
    subgraph.constant(sums, "words", words)
    deduplicate(sums)
    assert weights(sums) == ["w0"]
