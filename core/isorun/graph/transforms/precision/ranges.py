"""How to quantize one dense layer, from its weights and from activations that were seen."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from isorun.graph.transforms.precision.int8 import Dense

Array = npt.NDArray[np.float32]
_EXPONENTS = (None, 0.4, 0.5, 0.6, 0.7, 0.8)
_LEAST = np.float32(1e-5)
_ROWS, _FEWEST = 1024, 8  # to keep, of all batches and of each: 0.7 GB for the layers of a BERT-large


@dataclass(frozen=True, slots=True)
class Recipe:
    """What integers may be.

    Attributes:
        reduce_range: weights within 7 bits (-64 to 64). Processors without VNNI add products of two 8-bit
            integers in 16 bits, and those saturate.
        symmetric: activations with zero point 0, in int8, which TensorRT asks for.
    """

    reduce_range: bool = False
    symmetric: bool = False


class Seen:
    """A layer's activations: the extremes of each channel, and some rows.

    Args:
        batches: how many batches there will be; of each, an equal number of rows is kept.
    """

    def __init__(self, batches: int = 1) -> None:
        self._most = max(_FEWEST, _ROWS // batches)
        self._least: Array = np.array(np.inf, np.float32)
        self._greatest: Array = np.array(-np.inf, np.float32)
        self.rows: list[Array] = []

    def add(self, activations: Array) -> None:
        """Look at activations (..., K)."""
        rows = activations.reshape(-1, activations.shape[-1])
        self._least = np.minimum(self._least, rows.min(axis=0))
        self._greatest = np.maximum(self._greatest, rows.max(axis=0))
        step = max(1, len(rows) // self._most)
        self.rows.append(rows[::step][: self._most].copy())

    def quantize(self, weight: Array, recipe: Recipe) -> Dense:
        """The way to quantize that changes the product least, by its mean square error over the rows kept.

        The factors are s = max|x|^a / max|W|^(1 - a) for each channel, scaled to a geometric mean of 1, with the
        exponent a of least error; or 1.
        """
        rows = np.concatenate(self.rows)
        product = rows @ weight
        ways = (
            _quantize(self._factors(weight, exponent), self._least, self._greatest, weight, recipe)
            for exponent in _EXPONENTS
        )
        return min(ways, key=lambda dense: float(np.square(_product(rows, dense) - product).mean()))

    def _factors(self, weight: Array, exponent: float | None) -> Array:
        if exponent is None:
            return np.ones(len(weight), np.float32)
        activations = np.maximum(np.maximum(-self._least, self._greatest), _LEAST)
        weights = np.maximum(np.abs(weight).max(axis=1), _LEAST)
        factors = activations**exponent / weights ** (1 - exponent)
        return np.asarray(factors / np.exp(np.log(factors).mean()), np.float32)


def _quantize(factors: Array, least: Array, greatest: Array, weight: Array, recipe: Recipe) -> Dense:
    low, high = min(float((least / factors).min()), 0.0), max(float((greatest / factors).max()), 0.0)
    if recipe.symmetric:
        scale = np.float32(max(-low, high, 1e-9) / 127)
        zero_point: np.uint8 | np.int8 = np.int8(0)
    else:
        scale = np.float32(max(high - low, 1e-9) / 255)
        zero_point = np.uint8(np.clip(round(-low / float(scale)), 0, 255))
    scaled = weight * factors[:, None]
    most = 64 if recipe.reduce_range else 127
    weight_scale = np.maximum(np.abs(scaled).max(axis=0) / most, 1e-12).astype(np.float32)
    integers = np.clip(np.rint(scaled / weight_scale), -most, most).astype(np.int8)
    return Dense(integers, weight_scale, (1 / factors).astype(np.float32), scale, zero_point)


def _product(rows: Array, dense: Dense) -> Array:
    """The product as the quantized layer computes it."""
    limits = np.iinfo(dense.zero_point.dtype)
    zero = np.float32(dense.zero_point)
    integers = np.clip(np.rint(rows * dense.factors / dense.scale) + zero, limits.min, limits.max) - zero
    return np.asarray((integers * dense.scale) @ (dense.weight * dense.weight_scale), np.float32)
