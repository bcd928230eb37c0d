"""Dense layers in 8 bits: the same integers with and without padding, in every dialect, on every kind of mask."""

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

import exports
import small_bert
from isorun.graph.ops import functions, lower
from isorun.graph.transforms import padding_removal
from isorun.graph.transforms.precision import int8
from isorun.graph.transforms.precision.ranges import ActivationStats, Recipe

WIDE = {"hidden_size": 32, "intermediate_size": 48}
MASK = np.array([[1, 1, 1, 1, 1, 1], [1, 1, 0, 0, 0, 0], [0, 0, 0, 1, 1, 0], [1, 0, 1, 0, 0, 1], [0, 0, 0, 0, 0, 0]])


def answers(model: ir.Model, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    return exports.run(lower.lower(model, "primitive"), feeds)


RECIPE = Recipe(reduce_range=True)  # without VNNI, products of 8 bits overflow


def table_of(model: ir.Model, feeds: dict[str, np.ndarray]) -> dict[str, int8.QuantizedDense]:
    """A table for a model in the fused form, from one batch; the model is of no more use."""
    weights, readers, _ = int8.tap(model)
    values = dict(zip([value.name for value in model.graph.outputs], answers(model, feeds), strict=True))
    seen = {name: ActivationStats() for name in weights}
    for read, names in readers.items():
        for name in names:  # several layers may share one
            seen[name].add(values[read])
    return {name: stats.quantize(weights[name].numpy(), RECIPE) for name, stats in seen.items()}


@pytest.fixture(scope="module")
def table() -> dict[str, int8.QuantizedDense]:
    return table_of(small_bert.build(**WIDE), small_bert.feeds(MASK))


def test_quantized_results_agree_with_and_without_padding(table: dict[str, int8.QuantizedDense]) -> None:
    feeds = small_bert.feeds(MASK)
    untouched = answers(small_bert.build(**WIDE), feeds)
    padded = small_bert.build(**WIDE)
    int8.quantize(padded, table)
    packed = small_bert.build(**WIDE)
    padding_removal.remove(packed)
    int8.quantize(packed, table)
    (hidden, pooled), (packed_hidden, packed_pooled) = answers(padded, feeds), answers(packed, feeds)
    np.testing.assert_allclose(packed_hidden, hidden * (MASK != 0)[..., None], atol=2e-5)
    np.testing.assert_allclose(packed_pooled, pooled, atol=2e-5)
    difference = np.abs(hidden - untouched[0])
    assert 1e-4 < difference.max() < 0.3  # it is quantized, and it is near
    cosine = np.sum(hidden * untouched[0]) / np.linalg.norm(hidden) / np.linalg.norm(untouched[0])
    assert cosine > 0.999


def test_every_dense_layer_of_the_encoder_is_quantized(table: dict[str, int8.QuantizedDense]) -> None:
    model = small_bert.build(**WIDE)
    int8.quantize(model, table)
    kinds = [node.op_type for node in model.graph]
    assert len(table) == 9  # four in each of two layers, and the pooler's
    assert kinds.count("AttentionCore") == 2
    assert kinds.count("QuantizeLinear") == 9
    left = {name for name, value in model.graph.initializers.items() if value.const_value.dtype == ir.DataType.FLOAT}
    assert not left & table.keys()


def test_weight_that_a_product_shares_with_an_attention(table: dict[str, int8.QuantizedDense]) -> None:
    """As what an export reads the shape of keys from, beside the fused attention (MPT)."""
    model = small_bert.build(**WIDE)
    attention = next(node for node in model.graph if functions.is_fused(node, functions.ATTENTION))
    product = ir.node("MatMul", [attention.inputs[0], attention.inputs[2]])
    product.outputs[0].name, product.outputs[0].type = "product", ir.TensorType(ir.DataType.FLOAT)
    attention.prepend(product)
    model.graph.outputs.append(product.outputs[0])
    int8.quantize(model, table)
    feeds = small_bert.feeds(MASK)
    hidden, _, whole = answers(model, feeds)
    alone = small_bert.build(**WIDE)
    int8.quantize(alone, table)
    np.testing.assert_allclose(hidden, answers(alone, feeds)[0], atol=2e-5)
    assert whole.shape == (*MASK.shape, 3 * WIDE["hidden_size"])


@pytest.mark.sampled(8)
@pytest.mark.parametrize("dialect", functions.dialects())
@pytest.mark.parametrize("label", ["albert-dynamo18-eager", "mpnet-dynamo18-eager", "bert-dynamo23-sdpa"])
def test_exports_of_other_families(label: str, dialect: str) -> None:
    model = exports.fused(label)
    feeds = exports.given(label)
    table = table_of(model, feeds)
    assert table
    for removed in (False, True):
        model = exports.fused(label)
        if removed:
            padding_removal.remove(model)
        int8.quantize(model, table)
        got = exports.run(lower.lower(model, dialect), feeds)
        for output, expected in zip(got, exports.answers(label), strict=True):
            if output.ndim == 3:
                real = feeds["attention_mask"] != 0
                output, expected = output[real], expected[real]
            assert np.sum(output * expected) / np.linalg.norm(output) / np.linalg.norm(expected) > 0.99


def with_outliers() -> ir.Model:
    """A model whose first layer has large values in one channel: after its attention's input and after its GELU."""
    model = small_bert.build(**WIDE)
    for name, column in (("embeddings.LayerNorm.weight", 5), ("layer.0.intermediate.dense.weight", 7)):
        value = next(value for key, value in model.graph.initializers.items() if name in key)
        array = value.const_value.numpy().copy()
        array[..., column] *= 60
        value.const_value = ir.tensor(array, name=value.name)
    return model


@pytest.mark.sampled(3)
@pytest.mark.parametrize("dialect", functions.dialects())
def test_outlier_channels_stay_in_floating_point(dialect: str) -> None:
    feeds = small_bert.feeds(MASK)
    untouched = answers(with_outliers(), feeds)
    table = table_of(with_outliers(), feeds)
    assert any("query" in name or "qkv" in name for name, dense in table.items() if dense.outliers.size)
    assert any("layer.0.output" in name for name, dense in table.items() if dense.outliers.size)
    results = []
    for removed in (False, True):
        model = with_outliers()
        if removed:
            padding_removal.remove(model)
        int8.quantize(model, table)
        results.append(exports.run(lower.lower(model, dialect), feeds)[0] * (MASK != 0)[..., None])
    np.testing.assert_allclose(*results, atol=2e-5)
    expected = untouched[0] * (MASK != 0)[..., None]
    assert np.sum(results[0] * expected) / np.linalg.norm(results[0]) / np.linalg.norm(expected) > 0.999


def test_table_survives_a_round_trip(table: dict[str, int8.QuantizedDense], tmp_path: Path) -> None:
    int8.save(table, tmp_path)
    loaded = int8.load(tmp_path)
    assert loaded.keys() == table.keys()
    for name, dense in table.items():
        np.testing.assert_array_equal(loaded[name].weight, dense.weight)
        np.testing.assert_array_equal(loaded[name].factors, dense.factors)
        assert loaded[name].scale == dense.scale
        assert loaded[name].zero_point == dense.zero_point
        assert loaded[name].zero_point.dtype == np.uint8
