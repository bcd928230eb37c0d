"""Choice of the quantization parameters of a dense layer, from its weights and calibration activations."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from isorun.graph.transforms.precision.int8 import QuantizedDense

Array = npt.NDArray[np.float32]
_EXPONENTS = (None, 0.4, 0.5, 0.6, 0.7, 0.8)
_MIN_RANGE = np.float32(1e-5)
_ROWS, _MIN_ROWS = 1024, 8  # kept in total, and at least from each batch: 0.7 GB for the layers of a BERT-large


@dataclass(frozen=True, slots=True)
class Recipe:
    """Constraints on the integers.

    Attributes:
        reduce_range: weights within 7 bits (-64 to 64). Processors without VNNI add products of 8-bit integers in 16
            bits, which saturate.
        symmetric: int8 activations with zero point 0, which TensorRT requires.
        smooth: whether channels may have factors other than 1.
    """

    reduce_range: bool = False
    symmetric: bool = False
    smooth: bool = True


class Seen:
    """A layer's activations: the range of each channel, and a sample of rows.

    Args:
        batches: the number of batches; an equal number of rows of each is kept.
    """

    def __init__(self, batches: int = 1) -> None:
        self._max_rows = max(_MIN_ROWS, _ROWS // batches)
        self._minimum: Array = np.array(np.inf, np.float32)
        self._maximum: Array = np.array(-np.inf, np.float32)
        self.rows: list[Array] = []

    def add(self, activations: Array) -> None:
        """Add activations (..., K)."""
        rows = activations.reshape(-1, activations.shape[-1])
        self._minimum = np.minimum(self._minimum, rows.min(axis=0))
        self._maximum = np.maximum(self._maximum, rows.max(axis=0))
        step = max(1, len(rows) // self._max_rows)
        self.rows.append(rows[::step][: self._max_rows].copy())

    def quantize(self, weight: Array, recipe: Recipe) -> QuantizedDense:
        """Choose the parameters with the minimum mean squared error of the product over the sampled rows.

        The factors of the channels are 1, or s = max|x|^a / max|W|^(1 - a) scaled to a geometric mean of 1, for
        several exponents a.
        """
        rows = np.concatenate(self.rows)
        product = rows @ weight
        candidates = (
            _quantize(self._factors(weight, exponent), self._minimum, self._maximum, weight, recipe)
            for exponent in (_EXPONENTS if recipe.smooth else (None,))
        )
        return min(candidates, key=lambda dense: float(np.square(_product(rows, dense) - product).mean()))

    def _factors(self, weight: Array, exponent: float | None) -> Array:
        if exponent is None:
            return np.ones(len(weight), np.float32)
        activations = np.maximum(np.maximum(-self._minimum, self._maximum), _MIN_RANGE)
        weights = np.maximum(np.abs(weight).max(axis=1), _MIN_RANGE)
        factors = activations**exponent / weights ** (1 - exponent)
        return np.asarray(factors / np.exp(np.log(factors).mean()), np.float32)


def _quantize(factors: Array, minimum: Array, maximum: Array, weight: Array, recipe: Recipe) -> QuantizedDense:
    low, high = min(float((minimum / factors).min()), 0.0), max(float((maximum / factors).max()), 0.0)
    if recipe.symmetric:
        scale = np.float32(max(-low, high, 1e-9) / 127)
        zero_point: np.uint8 | np.int8 = np.int8(0)
    else:
        scale = np.float32(max(high - low, 1e-9) / 255)
        zero_point = np.uint8(np.clip(round(-low / float(scale)), 0, 255))
    scaled = weight * factors[:, None]
    limit = 64 if recipe.reduce_range else 127
    weight_scale = np.maximum(np.abs(scaled).max(axis=0) / limit, 1e-12).astype(np.float32)
    integers = np.clip(np.rint(scaled / weight_scale), -limit, limit).astype(np.int8)
    return QuantizedDense(integers, weight_scale, (1 / factors).astype(np.float32), scale, zero_point)


def _product(rows: Array, dense: QuantizedDense) -> Array:
    """The product that the quantized layer computes."""
    limits = np.iinfo(dense.zero_point.dtype)
    zero = np.float32(dense.zero_point)
    integers = np.clip(np.rint(rows * dense.factors / dense.scale) + zero, limits.min, limits.max) - zero
    return np.asarray((integers * dense.scale) @ (dense.weight * dense.weight_scale), np.float32)
