"""Pruned graphs: how many weights went, which, and what the graph computes then."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx.parser
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import numpy_helper

import exports
import tiny
from isorun.errors import IsorunError, UnsupportedModel
from isorun.graph import pipeline
from isorun.graph.inspect import inspect
from isorun.graph.io import files
from isorun_deepsparse.prune import PATTERNS, prune

HEAD = '<ir_version: 10, opset_import: ["" : 17]>'
ENCODER = 4 * tiny.CONFIG["num_hidden_layers"]


def dense(weights: np.ndarray, text: str = "y = MatMul (x, w)") -> ir.Model:
    proto = onnx.parser.parse_model(f"{HEAD} g (float[N,?] x) => (float[N,?] y) {{ {text} }}")
    proto.graph.initializer.append(numpy_helper.from_array(weights, "w"))
    return ir.serde.deserialize_model(proto)


def weights_of(model: ir.Model, name: str = "w") -> np.ndarray:
    tensor = model.graph.initializers[name].const_value
    return tensor.numpy()


def random_matrix(rows: int, columns: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal((rows, columns)).astype(np.float32)


@settings(deadline=None)
@given(
    sparsity=st.floats(0.001, 0.999),
    rows=st.integers(1, 8),
    columns=st.integers(1, 9),
    pattern=st.sampled_from(PATTERNS),
)
def test_prunes_the_smallest_weights(sparsity, rows, columns, pattern):
    before = random_matrix(4 * rows, columns)
    model = dense(before)
    (pruned,) = prune(model, sparsity, pattern, layers=["*"])
    after = weights_of(model)
    size = 4 if pattern == "block4" else 1
    assert pruned.zeros == np.count_nonzero(after == 0) == round(sparsity * before.size / size) * size
    assert (after[after != 0] == before[after != 0]).all()
    scores = np.abs(before).reshape(-1, size, columns).sum(axis=1)
    kept = (after.reshape(-1, size, columns) != 0).all(axis=1)
    gone = (after.reshape(-1, size, columns) == 0).all(axis=1)
    assert (kept | gone).all()
    if kept.any() and gone.any():
        assert scores[gone].max() <= scores[kept].min()


@pytest.mark.parametrize("pattern", PATTERNS)
def test_prunes_a_transposed_matrix_alike(pattern):
    before = random_matrix(8, 6)
    plain, turned = dense(before), dense(before.T.copy(), "y = Gemm <transB = 1> (x, w)")
    for model in (plain, turned):
        prune(model, 0.5, pattern, layers=["*"])
    np.testing.assert_array_equal(weights_of(turned).T, weights_of(plain))


def test_keeps_existing_zeros():
    before = random_matrix(8, 8)
    before[3:5] = 0
    model = dense(before)
    prune(model, 0.25, layers=["*"])
    np.testing.assert_array_equal(weights_of(model), before)


def test_half_precision_stays_half_precision():
    model = dense(random_matrix(8, 8).astype(np.float16))
    prune(model, 0.5, layers=["*"])
    assert weights_of(model).dtype == np.float16
    assert np.count_nonzero(weights_of(model)) == 32


@pytest.mark.parametrize("pattern", PATTERNS)
def test_prunes_only_the_dense_layers_of_an_encoder(bert: Path, pattern: str):
    model, whole = files.read(bert), files.read(bert)
    pruned = prune(model, 0.75, pattern)
    assert len(pruned) == ENCODER
    assert not any("pooler" in entry.weight or "embeddings" in entry.weight for entry in pruned)
    names = {entry.weight for entry in pruned}
    for layer in inspect(model).layers:
        if layer.weight in names:
            assert (layer.sparsity, layer.pattern) == (0.75, pattern)
        else:
            np.testing.assert_array_equal(weights_of(model, layer.weight), weights_of(whole, layer.weight))


def test_a_pruned_encoder_is_the_encoder_with_those_zeros(bert: Path):
    """The same weights, zeroed by hand in NumPy, in a model that this code has not touched."""
    model = files.read(bert)
    prune(model, 0.5)
    by_hand = onnx.load(bert)
    for tensor in by_hand.graph.initializer:
        name = tensor.name
        if name.endswith(("qkv.weight", "dense.weight")) and "pooler" not in name:
            array = numpy_helper.to_array(tensor).copy()
            array[np.abs(array) <= np.sort(np.abs(array), axis=None)[array.size // 2 - 1]] = 0
            tensor.CopyFrom(numpy_helper.from_array(array, name))
    feeds = tiny.feeds()
    expected, got = exports.run(by_hand, feeds), exports.run(model, feeds)
    assert exports.difference(expected, got) < 1e-6
    assert exports.difference(exports.run(onnx.load(bert), feeds), got) > 0.1


@pytest.mark.parametrize("label", ["albert-torchscript17-sdpa", "distilbert-dynamo18-sdpa", "mpnet-dynamo18-eager"])
def test_any_exporters_encoder(label: str):
    model = exports.model(label)
    assert pipeline.fuse(model).is_encoder
    pruned = prune(model, 0.5, "block4")
    layers = {layer.weight: layer for layer in inspect(model).layers}
    assert {layers[entry.weight].pattern for entry in pruned} == {"block4"}
    assert all(np.isfinite(output).all() for output in exports.run(model, exports.given(label, rows=4)))


def test_layers_by_their_names(bert: Path):
    pruned = prune(files.read(bert), 0.5, layers=["layer.1.*", "pooler.dense"])
    assert [entry.layer for entry in pruned][-1] == "pooler.dense"
    assert len(pruned) == 5


@pytest.mark.parametrize("sparsity", [0, 1, 80, -0.1, float("nan")])
def test_rejects_an_invalid_sparsity(bert: Path, sparsity: float):
    with pytest.raises(IsorunError, match="sparsity"):
        prune(files.read(bert), sparsity)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"pattern": "block5"}, "did you mean 'block4'"),
        ({"layers": ["layer.1.outpt"]}, "did you mean 'layer.1.output'"),
    ],
)
def test_suggests_the_closest_name(bert: Path, arguments, message):
    with pytest.raises(IsorunError, match=message):
        prune(files.read(bert), 0.5, **arguments)


def test_rejects_other_models_without_layer_names():
    model = dense(random_matrix(4, 4))
    with pytest.raises(UnsupportedModel, match="not an encoder"):
        prune(model, 0.5)


def test_rejects_sizes_that_blocks_do_not_divide():
    with pytest.raises(UnsupportedModel, match="6 inputs"):
        prune(dense(random_matrix(6, 4)), 0.5, "block4", layers=["*"])


def test_rejects_quantized_weights():
    text = "r = DequantizeLinear (w, s) y = MatMul (x, r)"
    proto = onnx.parser.parse_model(f"{HEAD} g (float[N,?] x) => (float[N,?] y) <float s = {{2}}> {{ {text} }}")
    proto.graph.initializer.append(numpy_helper.from_array(np.ones((4, 4), np.int8), "w"))
    with pytest.raises(UnsupportedModel, match="int8"):
        prune(ir.serde.deserialize_model(proto), 0.5, layers=["*"])


def test_rejects_weights_shared_with_other_layers():
    model = dense(random_matrix(8, 8), "i = Cast <to = 7> (x) r = Gather (w, i) z = MatMul (x, w) y = Add (r, z)")
    for node in model.graph:
        node.name = node.op_type.lower()
    with pytest.raises(UnsupportedModel, match=r"'matmul' shares .* 'gather'"):
        prune(model, 0.5, layers=["matmul"])
