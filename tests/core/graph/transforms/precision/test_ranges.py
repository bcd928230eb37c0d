"""How a dense layer is quantized: within its limits, close to the product, and better where channels differ."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from isorun.graph.transforms.precision.int8 import QuantizedDense
from isorun.graph.transforms.precision.ranges import ActivationStats, Recipe


def product(rows: np.ndarray, dense: QuantizedDense) -> np.ndarray:
    """x W by the integers, in float64."""
    limits = np.iinfo(dense.zero_point.dtype)
    zero = float(dense.zero_point)
    integers = np.clip(np.rint(rows * dense.factors / dense.scale) + zero, limits.min, limits.max) - zero
    outliers = rows[:, dense.outliers] @ dense.outlier_weight.astype(np.float64)
    return (integers * float(dense.scale)) @ (dense.weight.astype(np.float64) * dense.weight_scale) + outliers


def quantized(rows: np.ndarray, weight: np.ndarray, recipe: Recipe) -> QuantizedDense:
    seen = ActivationStats()
    seen.add(rows)
    return seen.quantize(weight, recipe)


@given(
    rows=st.integers(1, 40),
    width=st.integers(1, 24),
    columns=st.integers(1, 12),
    spread=st.floats(0.1, 30),
    shift=st.floats(-3, 3),
    reduce_range=st.booleans(),
    seed=st.integers(0, 9),
)
def test_quantization_error_is_bounded(
    rows: int, width: int, columns: int, spread: float, shift: float, reduce_range: bool, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    x = (rng.standard_normal((rows, width)) * spread + shift).astype(np.float32)
    weight = rng.standard_normal((width, columns)).astype(np.float32)
    dense = quantized(x, weight, Recipe(reduce_range))
    assert np.abs(dense.weight.astype(int)).max() <= (64 if reduce_range else 127)
    assert dense.zero_point.dtype == np.uint8
    # Each activation is off by half a step at most, each weight by half of its own: a bound on every product.
    steps = np.abs(1 / dense.factors) * dense.scale
    weights = dense.weight * dense.weight_scale * dense.factors[:, None]
    bound = (steps @ np.abs(weights)) + np.abs(x) @ (dense.weight_scale * dense.factors[:, None])
    assert np.all(np.abs(product(x, dense) - x @ weight) <= bound + 1e-3)


def relative_error(rows: np.ndarray, weight: np.ndarray, dense: QuantizedDense) -> float:
    """The root of the mean over rows of the squared error relative to the row's size."""
    expected = rows @ weight
    squared = np.square(product(rows, dense) - expected).sum(axis=1) / np.square(expected).sum(axis=1)
    return float(np.sqrt(squared.mean()))


def test_smooths_channels_of_different_size() -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((256, 64)).astype(np.float32)
    x[:, ::4] *= 80
    weight = rng.standard_normal((64, 32)).astype(np.float32)
    weight[::4] /= 80
    dense = quantized(x, weight, Recipe())
    assert relative_error(x, weight, dense) < 0.02
    assert dense.factors[::4].max() < dense.factors[1::4].min() / 4


@pytest.mark.parametrize("channels", [[3], [3, 40], [3, 17, 40, 41]])
def test_leaves_a_few_channels_with_large_values_in_floating_point(channels: list[int]) -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((256, 64)).astype(np.float32)
    for index, channel in enumerate(channels):
        x[index::64, channel] *= 100  # in a few rows only: factors for channels would cost the other rows
    weight = rng.standard_normal((64, 32)).astype(np.float32)
    dense = quantized(x, weight, Recipe())
    assert sorted(dense.outliers) == channels
    assert not dense.weight[channels].any()
    assert relative_error(x, weight, dense) < 0.02


def test_leaves_no_channel_out_where_that_gains_little() -> None:
    rng = np.random.default_rng(0)
    x, weight = (rng.standard_normal(shape).astype(np.float32) for shape in ((256, 64), (64, 32)))
    assert not quantized(x, weight, Recipe()).outliers.size


@pytest.mark.parametrize("value", [0.0, 2.5, -1.0])
def test_quantizes_constant_activations(value: float) -> None:
    x = np.full((4, 8), value, np.float32)
    weight = np.eye(8, dtype=np.float32)
    np.testing.assert_allclose(product(x, quantized(x, weight, Recipe())), x, atol=0.02 * abs(value) + 1e-6)


def test_sample_size_is_independent_of_the_number_of_batches() -> None:
    kept = []
    for batches in (4, 64):
        seen = ActivationStats(batches)
        for number in range(batches):
            x = np.random.default_rng(number).standard_normal((16, 128, 8)).astype(np.float32)
            seen.add(x, number)
        kept.append(sum(len(rows) for rows in seen.rows))
    assert kept[0] == kept[1] <= 1024


@pytest.mark.parametrize("seed", range(3))
def test_parameters_suit_rows_that_are_larger_than_those_of_most_batches(seed: int) -> None:
    """Factors that fit each channel's range closely cut off what other texts have."""
    rng = np.random.default_rng(seed)

    def rows(count: int) -> np.ndarray:
        return (rng.standard_t(3, (count, 64)) * np.geomspace(0.1, 10, 64)).astype(np.float32)

    batches, others, weight = [rows(2) for _ in range(8)], rows(512), rng.standard_normal((64, 32)).astype(np.float32)
    divided, whole = ActivationStats(len(batches)), ActivationStats()
    for number, batch in enumerate(batches):
        divided.add(batch, number)
        whole.add(batch)
    errors = [relative_error(others, weight, stats.quantize(weight, Recipe())) for stats in (divided, whole)]
    assert errors[0] < 0.9 * errors[1]
