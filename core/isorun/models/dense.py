"""Dense layers after pooling: their activations, and where their weights are kept."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from isorun.errors import InvalidModel, UnsupportedModel
from isorun.models import sentence_keys
from isorun.models.keys import read_table
from isorun.system.cache import sha256

Array = npt.NDArray[np.float32]
FILE = "dense.safetensors"
"""The end of the name of a file beside an ONNX file: the dense layers of its checkpoint."""

ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "Identity": lambda values: values,
    "Tanh": np.tanh,
    "ReLU": lambda values: np.maximum(values, np.float32(0)),
    "Sigmoid": lambda values: _sigmoid(values),
    "SiLU": lambda values: values * _sigmoid(values),
    "LeakyReLU": lambda values: np.where(values > 0, values, np.float32(0.01) * values),
    "ReLU6": lambda values: np.clip(values, np.float32(0), np.float32(6)),
    "Hardtanh": lambda values: np.clip(values, np.float32(-1), np.float32(1)),
    "ELU": lambda values: np.where(values > 0, values, np.expm1(np.minimum(values, 0))),
    "Softplus": lambda values: np.logaddexp(values, np.float32(0)),
    "Softsign": lambda values: values / (1 + np.abs(values)),
    "LogSigmoid": lambda values: -np.logaddexp(-values, np.float32(0)),
}
"""The activations of dense layers and of classifiers, by PyTorch's names, with PyTorch's default arguments."""


@dataclass(frozen=True)
class Dense:
    """A dense layer after pooling: ``activation(vectors @ weight.T + bias)``.

    Attributes:
        weight: (out, in), float32.
        bias: (out,), float32.
        activation: one of :data:`ACTIVATIONS`.
    """

    weight: Array
    bias: Array
    activation: str

    def __call__(self, vectors: Array) -> Array:
        """(count, in) to (count, out)."""
        return ACTIVATIONS[self.activation](vectors @ self.weight.T + self.bias)


def activation_named(name: str, where: str) -> str:
    """The key in :data:`ACTIVATIONS` of an activation by its import path, such as ``torch.nn.modules.Tanh``.

    Raises:
        UnsupportedModel: it is not one of them.
    """
    module, _, kind = name.rpartition(".")
    if kind not in ACTIVATIONS or not (module == "torch.nn" or module.startswith("torch.nn.modules")):
        raise UnsupportedModel(
            f"{where}: unsupported activation {kind or name} ({name!r}). Supported, of torch.nn: "
            f"{', '.join(ACTIVATIONS)}"
        )
    return kind


def read_layer(config: Path, weights: Path) -> Dense:
    """A dense layer as sentence-transformers saves it.

    Raises:
        InvalidModel: a file is missing or damaged, or the weights do not match the configuration.
        UnsupportedModel: the layer is elsewhere than after pooling, or has another activation.
    """
    fields = read_table(config, sentence_keys.DENSE)
    activation = activation_named(fields.get("activation_function", "torch.nn.Tanh"), str(config))
    if not weights.is_file():
        raise InvalidModel(f"There is no {weights}. isorun does not read pytorch_model.bin, since it is a pickle")
    tensors = _tensors(weights.read_bytes(), str(weights))
    shapes = {name: tensor.shape for name, tensor in tensors.items()}
    weight = tensors.get("linear.weight")
    out, into = weight.shape if weight is not None and weight.ndim == 2 else (0, 0)
    expected: dict[str, tuple[int, ...]] = {
        "linear.weight": (fields.get("out_features", out), fields.get("in_features", into))
    }
    if fields.get("bias", True):
        expected["linear.bias"] = expected["linear.weight"][:1]
    if shapes != expected or weight is None:
        raise InvalidModel(f"{weights} must contain a dense layer's weights of shapes {expected}, got {shapes}")
    return Dense(weight, tensors.get("linear.bias", np.zeros(out, np.float32)), activation)


def pack(layers: Sequence[Dense]) -> bytes:
    """The weights of dense layers as one safetensors file."""
    from safetensors.numpy import save

    tensors: dict[str, Array] = {}
    for index, layer in enumerate(layers):
        tensors |= {f"{index}.weight": layer.weight, f"{index}.bias": layer.bias}
    return save({name: np.ascontiguousarray(tensor) for name, tensor in tensors.items()})


def unpack(path: Path, digest: str, activations: Sequence[str]) -> list[Dense]:
    """The inverse of :func:`pack`.

    Raises:
        InvalidModel: the file is missing, or belongs to another model.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InvalidModel(
            f"The dense layers of this model are in {path}, which cannot be read ({error.strerror}). Copy it beside "
            "the ONNX file"
        ) from error
    if sha256(content) != digest:
        raise InvalidModel(f"{path} belongs to another model, or is damaged. Build the model again: isorun build")
    tensors = _tensors(content, str(path))
    return [Dense(tensors[f"{index}.weight"], tensors[f"{index}.bias"], name) for index, name in enumerate(activations)]


def _tensors(content: bytes, name: str) -> Mapping[str, Array]:
    """The tensors of a safetensors file as float32."""
    from safetensors import SafetensorError
    from safetensors.numpy import load

    try:
        tensors = load(content)
    except (SafetensorError, KeyError, TypeError, ValueError) as error:
        raise InvalidModel(f"{name} does not contain a dense layer's weights: {error!r}") from error
    for key, tensor in tensors.items():
        if tensor.dtype.kind != "f" and tensor.dtype.name != "bfloat16":
            raise InvalidModel(f"{name}: {key!r} must be of a floating-point type, got {tensor.dtype}")
    return {key: tensor.astype(np.float32) for key, tensor in tensors.items()}


def _sigmoid(values: Array) -> Array:
    sigmoid: Array = 0.5 + 0.5 * np.tanh(0.5 * values)  # exp() would overflow
    return sigmoid
