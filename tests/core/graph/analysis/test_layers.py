"""Layers of small graphs whose weights are known."""

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import numpy_helper

import tiny
from isorun.graph.analysis.layers import layers
from isorun.graph.io import files

HEAD = '<ir_version: 10, opset_import: ["" : 21, "com.microsoft" : 1]>'


def layers_of(text: str, **weights: np.ndarray):
    """The layers of a graph in ONNX's text form, with these weights."""
    proto = onnx.parser.parse_model(f"{HEAD} g (float[N,8] x) => (float[N,?] y) {{ {text} }}")
    proto.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in weights.items())
    return layers(ir.serde.deserialize_model(onnx.shape_inference.infer_shapes(proto)))


def matrix(rows: int = 8, columns: int = 6) -> np.ndarray:
    return np.random.default_rng(0).standard_normal((rows, columns)).astype(np.float32)


def test_a_bert(bert):
    kinds = [(layer.kind, layer.operator) for layer in layers(files.read(bert))]
    fused = "isorun.fused."
    assert kinds[:3] == [("embedding", f"{fused}EmbedLayerNormalization")] * 3
    assert kinds[3:7] == [("dense", f"{fused}SelfAttention"), *[("dense", "MatMul")] * 3]
    assert len(kinds) == 3 + 4 * tiny.CONFIG["num_hidden_layers"] + 1


def test_a_dense_layer():
    (layer,) = layers_of("y = MatMul (x, w)", w=matrix())
    assert (layer.kind, layer.weight, layer.shape, layer.transposed) == ("dense", "w", (8, 6), False)
    assert (layer.precision, layer.activations, layer.bytes, layer.operations) == ("fp32", "fp32", 192, 96)
    assert (layer.sparsity, layer.zero_blocks, layer.pattern, layer.per) == (0, 0, "dense", None)


def test_zeros_are_counted():
    weights = matrix()
    weights[:4, :3] = 0  # three blocks of twelve
    weights[4, 5] = 0  # and one more
    (layer,) = layers_of("y = MatMul (x, w)", w=weights)
    assert layer.sparsity == pytest.approx(13 / 48)
    assert layer.zero_blocks == pytest.approx(3 / 12)
    assert layer.pattern == "block4"


def test_blocks_lie_along_the_input():
    weights = matrix(8, 8)
    weights[:, :4] = np.where(np.arange(8)[:, None] % 2, weights[:, :4], 0)  # along the output
    (layer,) = layers_of("y = MatMul (x, w)", w=weights)
    assert (layer.sparsity, layer.zero_blocks, layer.pattern) == (0.25, 0, "unstructured")


@pytest.mark.parametrize("text", ["y = Gemm <transB = 1> (x, w)", "t = Transpose (w) y = MatMul (x, t)"])
def test_blocks_of_a_transposed_matrix_lie_along_the_input_too(text):
    weights = matrix(8, 6)
    weights[:4, 1:4] = 0
    (layer,) = layers_of(text, w=np.ascontiguousarray(weights.T))
    assert (layer.transposed, layer.shape) == (True, (6, 8))
    assert layer.zero_blocks == pytest.approx(3 / 12)


def test_an_input_that_no_block_divides_has_none():
    (layer,) = layers_of(
        "z = Gather <axis = 1> (x, i) y = MatMul (z, w)", i=np.arange(6), w=np.zeros((6, 2), np.float32)
    )
    assert (layer.sparsity, layer.zero_blocks, layer.pattern) == (1, None, "unstructured")


@given(sparsity=st.floats(0.15, 0.97), seed=st.integers(0, 99), size=st.sampled_from((1, 4)))
def test_zeros_in_blocks_are_told_from_scattered_ones(sparsity, seed, size):
    kept = np.repeat(np.random.default_rng(seed).random((64 // size, 64)) >= sparsity, size, axis=0)
    (layer,) = layers_of("z = Concat <axis = 1> (x, x, x, x, x, x, x, x) y = MatMul (z, w)", w=kept.astype(np.float32))
    assert layer.pattern == ("block4" if size == 4 else "unstructured")


QDQ = "r = DequantizeLinear <axis = 1> (w, s, z) y = MatMul (x, r)"


@pytest.mark.parametrize(("dtype", "zero"), [(np.int8, [0, 0, 0]), (np.uint8, [128, 3, 77])])
def test_quantized_weights_count_zeros_from_their_zero_point(dtype, zero):
    weights = np.full((8, 3), 5, dtype)
    weights[:4, 0], weights[4:, 2] = zero[0], zero[2]
    (layer,) = layers_of(QDQ, w=weights, s=np.ones(3, np.float32), z=np.array(zero, dtype))
    assert (layer.kind, layer.precision, layer.activations) == ("dense", np.dtype(dtype).name, "fp32")
    assert (layer.sparsity, layer.zero_blocks) == (pytest.approx(1 / 3), pytest.approx(1 / 3))


def test_reports_quantized_activations():
    text = f"q = QuantizeLinear (x, a, b) d = DequantizeLinear (q, a, b) {QDQ.replace('(x, r)', '(d, r)')}"
    one, nothing = np.array(1, np.float32), np.array(0, np.uint8)
    weights = {"w": np.ones((8, 3), np.int8), "s": np.ones(3, np.float32), "z": np.zeros(3, np.int8)}
    (layer,) = layers_of(text, a=one, b=nothing, **weights)
    assert (layer.precision, layer.activations) == ("int8", "uint8")


def test_integer_products():
    weights = np.full((8, 3), 9, np.uint8)
    weights[:, 1] = 7
    (layer,) = layers_of(
        "a, s, p = DynamicQuantizeLinear (x) i = MatMulInteger (a, w, p, z) y = Cast <to = 1> (i)",
        w=weights,
        z=np.array(7, np.uint8),
    )
    assert (layer.kind, layer.precision, layer.sparsity) == ("dense", "uint8", pytest.approx(1 / 3))


def test_rows_that_are_looked_up():
    (layer,) = layers_of("i = Cast <to = 7> (x) y = Gather (w, i)", w=matrix())
    assert (layer.kind, layer.operations, layer.zero_blocks) == ("embedding", 0, None)


def test_omits_integers_that_are_not_weights():
    assert layers_of("i = Cast <to = 7> (x) y = Add (i, w)", w=np.ones((1, 8), np.int64)) == ()


def test_lists_a_shared_matrix_for_each_layer():
    first, second = layers_of("z = MatMul (x, w) y = MatMul (z, w)", w=matrix(8, 8))
    assert first.weight == second.weight == "w"
