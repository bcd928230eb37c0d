"""How a dense layer is quantized: within its limits, close to the product, and better where channels differ."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from isorun.graph.transforms.precision.int8 import QuantizedDense
from isorun.graph.transforms.precision.ranges import Recipe, Seen


def product(rows: np.ndarray, dense: QuantizedDense) -> np.ndarray:
    """x W by the integers, in float64."""
    limits = np.iinfo(dense.zero_point.dtype)
    zero = float(dense.zero_point)
    integers = np.clip(np.rint(rows * dense.factors / dense.scale) + zero, limits.min, limits.max) - zero
    return (integers * float(dense.scale)) @ (dense.weight.astype(np.float64) * dense.weight_scale)


def quantized(rows: np.ndarray, weight: np.ndarray, recipe: Recipe) -> QuantizedDense:
    seen = Seen()
    seen.add(rows)
    return seen.quantize(weight, recipe)


@given(
    rows=st.integers(1, 40),
    width=st.integers(1, 24),
    columns=st.integers(1, 12),
    spread=st.floats(0.1, 30),
    shift=st.floats(-3, 3),
    reduce_range=st.booleans(),
    symmetric=st.booleans(),
    seed=st.integers(0, 9),
)
def test_quantization_error_is_bounded(
    rows: int, width: int, columns: int, spread: float, shift: float, reduce_range: bool, symmetric: bool, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    x = (rng.standard_normal((rows, width)) * spread + shift).astype(np.float32)
    weight = rng.standard_normal((width, columns)).astype(np.float32)
    dense = quantized(x, weight, Recipe(reduce_range, symmetric))
    assert np.abs(dense.weight.astype(int)).max() <= (64 if reduce_range else 127)
    assert dense.zero_point.dtype == (np.int8 if symmetric else np.uint8)
    assert not symmetric or dense.zero_point == 0
    # Each activation is off by half a step at most, each weight by half of its own: a bound on every product.
    steps = np.abs(1 / dense.factors) * dense.scale
    weights = dense.weight * dense.weight_scale * dense.factors[:, None]
    bound = (steps @ np.abs(weights)) + np.abs(x) @ (dense.weight_scale * dense.factors[:, None])
    assert np.all(np.abs(product(x, dense) - x @ weight) <= bound + 1e-3)


def test_smooths_an_outlier_channel() -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((256, 64)).astype(np.float32)
    x[:, 3] *= 80
    weight = rng.standard_normal((64, 32)).astype(np.float32)
    weight[3] /= 80
    dense = quantized(x, weight, Recipe())
    error = np.sqrt(np.square(product(x, dense) - x @ weight).mean() / np.square(x @ weight).mean())
    assert error < 0.02
    assert dense.factors[3] < dense.factors[4] / 4


@pytest.mark.parametrize("value", [0.0, 2.5, -1.0])
def test_quantizes_constant_activations(value: float) -> None:
    x = np.full((4, 8), value, np.float32)
    weight = np.eye(8, dtype=np.float32)
    np.testing.assert_allclose(product(x, quantized(x, weight, Recipe())), x, atol=0.02 * abs(value) + 1e-6)


def test_sample_size_is_independent_of_the_number_of_batches() -> None:
    kept = []
    for batches in (4, 64):
        seen = Seen(batches)
        for seed in range(batches):
            seen.add(np.random.default_rng(seed).standard_normal((4, 128, 8)).astype(np.float32))
        kept.append(sum(len(rows) for rows in seen.rows))
    assert kept[0] == kept[1] <= 1024
