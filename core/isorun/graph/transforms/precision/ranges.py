"""Choice of the quantization parameters of a dense layer, from its weights and calibration activations."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from isorun.graph.transforms.precision.int8 import QuantizedDense

Array = npt.NDArray[np.float32]
_EXPONENTS = (None, 0.4, 0.5, 0.6, 0.7, 0.8)
_MIN_RANGE = np.float32(1e-5)
_OUTLIERS = (1, 2, 4)  # how many channels may stay in floating point
_OUTLYING = 1.5  # times the largest activation of the other channels: below it, a channel is not worth a try
_EVERY = 4  # one batch in this many is held out
_ROWS, _MIN_ROWS = 1024, 8  # kept in total, and at least from each batch: 0.7 GB for the layers of a BERT-large


@dataclass(frozen=True, slots=True)
class Recipe:
    """Constraints on the integers.

    Attributes:
        reduce_range: weights within 7 bits (-64 to 64). Processors without VNNI add products of 8-bit integers in 16
            bits, which saturate.
        smooth: whether channels may have factors other than 1.
    """

    reduce_range: bool = False
    smooth: bool = True


class _Range:
    """The smallest and the largest activation of each channel."""

    def __init__(self) -> None:
        self.minimum: Array = np.array(np.inf, np.float32)
        self.maximum: Array = np.array(-np.inf, np.float32)

    def add(self, rows: Array) -> None:
        self.minimum = np.minimum(self.minimum, rows.min(axis=0))
        self.maximum = np.maximum(self.maximum, rows.max(axis=0))

    @property
    def extent(self) -> Array:
        """The largest magnitude of each channel."""
        return np.maximum(-self.minimum, self.maximum)

    @property
    def largest(self) -> npt.NDArray[np.int64]:
        """The channels, the one with the largest magnitude first."""
        return np.argsort(-self.extent, kind="stable")


class ActivationStats:
    """A layer's activations: the range of each channel, and a sample of rows.

    Every fourth batch is held out to judge parameters that are chosen by the range of the others, so that they suit
    activations that are a little larger than those of calibration.

    Args:
        batches: the number of batches; an equal number of rows of each that is held out is kept. Fewer than four are
            not divided.
    """

    def __init__(self, batches: int = 1) -> None:
        self._every = _EVERY if batches >= _EVERY else 1
        self._max_rows = max(_MIN_ROWS, _ROWS // (batches // self._every))
        self._whole, self._others = _Range(), _Range()
        self.rows: list[Array] = []

    def add(self, activations: Array, batch: int = 0) -> None:
        """Add activations (..., K) of a batch, by its number."""
        rows = activations.reshape(-1, activations.shape[-1])
        held_out = batch % self._every == self._every - 1
        self._whole.add(rows)
        if not held_out or self._every == 1:
            self._others.add(rows)
        if held_out:
            step = max(1, len(rows) // self._max_rows)
            self.rows.append(rows[::step][: self._max_rows].copy())

    def quantize(self, weight: Array, recipe: Recipe) -> QuantizedDense:
        """Choose the parameters with the minimum error of the product over the sampled rows.

        The error is the mean over rows of the squared error relative to the row's own size, so that a few rows with
        large values do not decide alone. The factors of the channels are 1, or s = max|x|^a / max|W|^(1 - a) scaled to
        a geometric mean of 1, for several exponents a. The channels with the largest activations stay in floating point
        if that halves the error.
        """
        rows = np.concatenate(self.rows)
        product = rows @ weight
        sizes = np.maximum(np.square(product).sum(axis=1), np.finfo(np.float32).tiny)

        def best(count: int) -> tuple[float, float | None]:
            """The least error with so many outliers, and the exponent that has it."""
            errors = {}
            for exponent in _EXPONENTS if recipe.smooth else (None,):
                got = _product(rows, _quantize(weight, self._others, exponent, count, recipe))
                errors[exponent] = float((np.square(got - product).sum(axis=1) / sizes).mean())
            exponent = min(errors, key=lambda exponent_of: errors[exponent_of])
            return errors[exponent], exponent

        extent = np.sort(self._others.extent)[::-1]
        (error, exponent), outliers = best(0), 0
        for count in _OUTLIERS:
            if count < len(extent) and extent[0] >= _OUTLYING * extent[count]:
                lower, lower_exponent = best(count)
                if lower <= error / 2:
                    error, exponent, outliers = lower, lower_exponent, count
        return _quantize(weight, self._whole, exponent, outliers, recipe)


def _quantize(weight: Array, seen: _Range, exponent: float | None, count: int, recipe: Recipe) -> QuantizedDense:
    """The parameters by the range of activations, with so many outliers."""
    factors, outliers = _factors(weight, seen, exponent), np.sort(seen.largest[:count])
    inside = np.ones(len(weight), bool)
    inside[outliers] = False
    low = min(float((seen.minimum / factors)[inside].min()), 0.0)
    high = max(float((seen.maximum / factors)[inside].max()), 0.0)
    scale = np.float32(max(high - low, 1e-9) / 255)
    zero_point = np.uint8(np.clip(round(-low / float(scale)), 0, 255))
    scaled = weight * (factors * inside)[:, None]
    limit = 64 if recipe.reduce_range else 127
    weight_scale = np.maximum(np.abs(scaled).max(axis=0) / limit, 1e-12).astype(np.float32)
    integers = np.clip(np.rint(scaled / weight_scale), -limit, limit).astype(np.int8)
    reciprocal = (1 / factors).astype(np.float32)
    return QuantizedDense(integers, weight_scale, reciprocal, scale, zero_point, outliers, weight[outliers])


def _factors(weight: Array, seen: _Range, exponent: float | None) -> Array:
    """s for each channel."""
    if exponent is None:
        return np.ones(len(weight), np.float32)
    activations = np.maximum(seen.extent, _MIN_RANGE)
    weights = np.maximum(np.abs(weight).max(axis=1), _MIN_RANGE)
    factors = activations**exponent / weights ** (1 - exponent)
    return np.asarray(factors / np.exp(np.log(factors).mean()), np.float32)


def _product(rows: Array, dense: QuantizedDense) -> Array:
    """The product that the quantized layer computes."""
    limits = np.iinfo(dense.zero_point.dtype)
    zero = np.float32(dense.zero_point)
    integers = np.clip(np.rint(rows * dense.factors / dense.scale) + zero, limits.min, limits.max) - zero
    product = (integers * dense.scale) @ (dense.weight * dense.weight_scale)
    return np.asarray(product + rows[:, dense.outliers] @ dense.outlier_weight, np.float32)
