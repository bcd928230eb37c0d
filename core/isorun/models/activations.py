"""The activations of PyTorch, with its default arguments, in NumPy."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float32]

SLOPED = "PReLU"
"""The activation whose slope below zero is a weight."""

# Coefficients of a rational approximation of the complementary error function (relative error below 1.2e-7).
_ERFC = (
    *(-1.26551223, 1.00002368, 0.37409196, 0.09678418, -0.18628806),
    *(0.27886807, -1.13520398, 1.48851587, -0.82215223, 0.17087277),
)
_SELU = (np.float32(1.0507009873554805), np.float32(1.6732632423543772))


def _may_underflow() -> np.errstate:
    """Where small numbers become 0, which is no error, even if an application has NumPy raise errors."""
    return np.errstate(under="ignore")


def softmax(logits: Array) -> Array:
    """The probabilities along the last axis."""
    with _may_underflow():
        exponentials: Array = np.exp(logits - logits.max(axis=-1, keepdims=True))
        total: Array = exponentials.sum(axis=-1, keepdims=True)
        return exponentials / total


def _sigmoid(values: Array) -> Array:
    with _may_underflow():
        small = np.exp(-np.abs(values))  # exp(values) would overflow; tanh() would lose the digits of small results
        sigmoid: Array = np.where(values >= 0, np.float32(1), small) / (1 + small)
    return sigmoid


def _softplus(values: Array) -> Array:
    with _may_underflow():
        logarithm: Array = np.logaddexp(values, np.float32(0))
    return logarithm


def _gelu(values: Array) -> Array:
    scaled = values.astype(np.float64) / np.sqrt(2)
    factor = 1 / (1 + np.abs(scaled) / 2)
    with _may_underflow():
        complement = factor * np.exp(-np.square(scaled) + np.polynomial.polynomial.polyval(factor, _ERFC))
        normal = np.where(scaled < 0, complement, 2 - complement) / 2  # the normal distribution's function
        result: Array = (values * normal).astype(values.dtype)
    return result


def _log_softmax(values: Array) -> Array:
    shifted = values - values.max(axis=-1, keepdims=True)
    with _may_underflow():
        result: Array = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return result


ALONG_AXIS: Mapping[str, Callable[[Array], Array]] = {
    "Softmax": softmax,
    "Softmin": lambda values: softmax(-values),
    "LogSoftmax": _log_softmax,
}
"""Those that read a whole vector."""

ACTIVATIONS: Mapping[str, Callable[[Array], Array]] = {
    "Identity": lambda values: values,
    "Tanh": np.tanh,
    "ReLU": lambda values: np.maximum(values, np.float32(0)),
    "Sigmoid": _sigmoid,
    "SiLU": lambda values: values * _sigmoid(values),
    "GELU": _gelu,
    "LeakyReLU": lambda values: np.where(values > 0, values, np.float32(0.01) * values),
    "RReLU": lambda values: np.where(values > 0, values, np.float32(11 / 48) * values),
    "ReLU6": lambda values: np.clip(values, np.float32(0), np.float32(6)),
    "Hardtanh": lambda values: np.clip(values, np.float32(-1), np.float32(1)),
    "Hardsigmoid": lambda values: np.clip(values / 6 + np.float32(0.5), np.float32(0), np.float32(1)),
    "Hardswish": lambda values: values * np.clip(values + 3, np.float32(0), np.float32(6)) / np.float32(6),
    "Hardshrink": lambda values: np.where(np.abs(values) > 0.5, values, np.float32(0)),
    "Softshrink": lambda values: np.sign(values) * np.maximum(np.abs(values) - np.float32(0.5), np.float32(0)),
    "Tanhshrink": lambda values: values - np.tanh(values),
    "ELU": lambda values: np.where(values > 0, values, np.expm1(np.minimum(values, 0))),
    "CELU": lambda values: np.where(values > 0, values, np.expm1(np.minimum(values, 0))),
    "SELU": lambda values: _SELU[0] * np.where(values > 0, values, _SELU[1] * np.expm1(np.minimum(values, 0))),
    "Mish": lambda values: values * np.tanh(_softplus(values)),
    "Softplus": _softplus,
    "Softsign": lambda values: values / (1 + np.abs(values)),
    "LogSigmoid": lambda values: -_softplus(-values),
    **ALONG_AXIS,
}
"""The activations of dense layers and of classifiers, by PyTorch's names."""
