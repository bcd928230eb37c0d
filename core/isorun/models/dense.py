"""Dense layers and normalizations that follow a transformer or a pooling, and where their weights are kept."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from isorun.errors import InvalidFeeds, InvalidModel, UnsupportedModel
from isorun.models import sentence_keys
from isorun.models.activations import ACTIVATIONS, ALONG_AXIS, SLOPED
from isorun.models.keys import read_table
from isorun.models.pickled_weights import PickledTensors
from isorun.models.weights import PICKLED, SafeTensors
from isorun.system.cache import sha256

Array = npt.NDArray[np.float32]
FILE = "dense.safetensors"
"""The end of the name of a file beside an ONNX file: the layers of its checkpoint."""

TOKENS = "token_embeddings"
"""sentence-transformers' name of the vectors of tokens, which a layer before pooling changes."""

_LAYER_NORM, _WORD_WEIGHTS = "layer_norm", "word_weights"
_RESIDUAL = "+residual"
_EPSILON = np.float32(1e-5)  # PyTorch's default, which sentence-transformers does not store


class _Weighted:
    @property
    def tensors(self) -> Mapping[str, Array]:
        """The weights by name."""
        return {name: value for name, value in vars(self).items() if isinstance(value, np.ndarray)}


@dataclass(frozen=True)
class Dense(_Weighted):
    """A dense layer: ``activation(vectors @ weight.T + bias)``, to which the vectors may be added.

    Attributes:
        weight: (out, in), float32.
        bias: (out,), float32.
        activation: one of :data:`isorun.models.activations.ACTIVATIONS`, or :data:`isorun.models.activations.SLOPED`.
        adds: whether the vectors are added to the result, through ``residual`` if there is one.
        residual: (out, in), float32.
        slope: of the activation below zero; (1,), float32.
    """

    weight: Array
    bias: Array
    activation: str
    adds: bool = False
    residual: Array | None = None
    slope: Array | None = None

    @property
    def kind(self) -> str:
        """What :func:`unpack` needs beside the weights."""
        return self.activation + _RESIDUAL * self.adds

    def __call__(self, vectors: Array) -> Array:
        """(..., in) to (..., out)."""
        values = vectors @ self.weight.T + self.bias
        if self.slope is not None:
            values = np.where(values > 0, values, self.slope * values)
        else:
            values = ACTIVATIONS[self.activation](values)
        if self.adds:
            values = values + (vectors if self.residual is None else vectors @ self.residual.T)
        return values


@dataclass(frozen=True)
class LayerNorm(_Weighted):
    """A layer normalization.

    Attributes:
        weight, bias: (width,), float32.
    """

    weight: Array
    bias: Array
    kind = _LAYER_NORM

    def __call__(self, vectors: Array) -> Array:
        """(..., width) to the same shape."""
        centred = vectors - vectors.mean(axis=-1, keepdims=True)
        variance = np.square(centred).mean(axis=-1, keepdims=True)
        result: Array = centred / np.sqrt(variance + _EPSILON) * self.weight + self.bias
        return result


@dataclass(frozen=True)
class WordWeights(_Weighted):
    """The weight of each token in a mean over tokens.

    Attributes:
        weight: (vocabulary,), float32.
    """

    weight: Array
    kind = _WORD_WEIGHTS

    def of(self, ids: Sequence[int]) -> Array:
        """The weights of tokens.

        Raises:
            InvalidFeeds: a token has none.
        """
        if (largest := max(ids, default=0)) >= len(self.weight):
            raise InvalidFeeds(
                f"Token ids must be from 0 to {len(self.weight) - 1}, the words that have a weight, got {largest}"
            )
        return self.weight[ids]


Layer = Dense | LayerNorm | WordWeights


def activation_named(name: str, where: str, *, sloped: bool = True) -> str:
    """The key in :data:`ACTIVATIONS` of an activation by its import path, such as ``torch.nn.modules.Tanh``; or, with
    ``sloped``, :data:`SLOPED`, whose slope is among the weights.

    Raises:
        UnsupportedModel: it is not one of them.
    """
    module, _, kind = name.rpartition(".")
    known = (*ACTIVATIONS, SLOPED) if sloped else (*ACTIVATIONS,)
    if kind not in known or not (module == "torch.nn" or module.startswith("torch.nn.modules")):
        raise UnsupportedModel(
            f"{where}: unsupported activation {kind or name} ({name!r}). Supported, of torch.nn: {', '.join(known)}"
        )
    return kind


def read_layer(config: Path, weights: Path, defaults: Mapping[str, str] | None = None) -> tuple[Dense, bool]:
    """A dense layer as sentence-transformers saves it, and whether it changes the vectors of tokens.

    Args:
        config: its ``config.json``.
        weights: its ``model.safetensors``.
        defaults: the values of keys that the file lacks.

    Raises:
        InvalidModel: a file is missing or damaged, or the weights do not match the configuration.
        UnsupportedModel: the layer reads or changes something else, or has an unknown activation.
    """
    fields = {**(defaults or {}), **read_table(config, sentence_keys.DENSE)}
    activation = activation_named(fields.get("activation_function", "torch.nn.Tanh"), str(config))
    read, written = (fields.get(f"module_{side}_name") for side in ("input", "output"))
    if written not in (None, read) and not {read, written} <= {None, "sentence_embedding"}:
        raise UnsupportedModel(
            f"{config}: module_output_name must be {read!r}, as module_input_name is, or null, got {written!r}"
        )
    tensors = tensors_of(weights)
    weight = tensors.get("linear.weight")
    out, into = weight.shape if weight is not None and weight.ndim == 2 else (0, 0)
    shape: tuple[Any, ...] = (fields.get("out_features", out), fields.get("in_features", into))
    expected: dict[str, tuple[int, ...]] = {"linear.weight": shape}
    if fields.get("bias", True):
        expected["linear.bias"] = shape[:1]
    adds = bool(fields.get("use_residual"))
    if adds and shape[0] != shape[1]:
        expected["residual.weight"] = shape
    if activation == SLOPED:
        expected["activation_function.weight"] = (1,)
    _check_shapes(weights, tensors, expected)
    if read == TOKENS and activation in ALONG_AXIS:
        raise UnsupportedModel(f"{config}: {activation} of the vectors of tokens is not supported")
    layer = Dense(
        tensors["linear.weight"],
        tensors.get("linear.bias", np.zeros(out, np.float32)),
        activation,
        adds,
        tensors.get("residual.weight"),
        tensors.get("activation_function.weight"),
    )
    return layer, read == TOKENS


def read_projection(folder: Path, name: str) -> Dense:
    """A layer without bias and activation, whose weight is among those of a checkpoint.

    Raises:
        InvalidModel: there is no such weight, or it is not a matrix.
    """
    weights = SafeTensors(folder, "")
    shape = weights.shape(name)
    if len(shape) != 2:
        raise InvalidModel(f"{folder}: {name!r} must be a matrix, got shape {shape}")
    return Dense(weights.read(name, shape), np.zeros(shape[0], np.float32), "Identity")


def read_linear(path: Path) -> Dense:
    """A layer without activation that PyTorch pickled by itself.

    Raises:
        InvalidModel: the file is missing or damaged, or holds something else.
    """
    if not path.is_file():
        raise InvalidModel(f"There is no {path}")
    tensors = _unpickled(path)
    shape = tensors["weight"].shape if "weight" in tensors else ()
    if len(shape) != 2 or tensors.keys() != {"weight", "bias"} or tensors["bias"].shape != shape[:1]:
        raise InvalidModel(f"{path} must hold the weight and the bias of a layer, got {', '.join(tensors)}")
    return Dense(tensors["weight"], tensors["bias"], "Identity")


def read_norm(config: Path, weights: Path) -> LayerNorm:
    """A layer normalization as sentence-transformers saves it.

    Raises:
        InvalidModel, UnsupportedModel: as :func:`read_layer`.
    """
    width = read_table(config, sentence_keys.LAYER_NORM).get("dimension")
    tensors = tensors_of(weights)
    if width is None:
        raise InvalidModel(f"{config} must have a dimension")
    _check_shapes(weights, tensors, dict.fromkeys(("norm.weight", "norm.bias"), (width,)))
    return LayerNorm(tensors["norm.weight"], tensors["norm.bias"])


def read_words(config: Path) -> WordWeights:
    """The weights of words as sentence-transformers saves them.

    Raises:
        InvalidModel, UnsupportedModel: as :func:`read_layer`.
    """
    fields = read_table(config, sentence_keys.WORD_WEIGHTS)
    if missing := [key for key in ("vocab", "word_weights") if key not in fields]:
        raise InvalidModel(f"{config} must have {missing[0]}")
    weights, default = fields["word_weights"], fields.get("unknown_word_weight", 1)
    by_word = (weights.get(word, weights.get(word.lower(), default)) for word in fields["vocab"])
    return WordWeights(np.fromiter(by_word, np.float32))


def _check_shapes(path: Path, tensors: Mapping[str, Array], expected: Mapping[str, tuple[int, ...]]) -> None:
    shapes = {name: tensor.shape for name, tensor in tensors.items()}
    if shapes != expected:
        raise InvalidModel(f"{path} must contain a layer's weights of shapes {expected}, got {shapes}")


def pack(layers: Sequence[Layer]) -> bytes:
    """The weights of layers as one safetensors file."""
    from safetensors.numpy import save

    named = {f"{index}.{name}": tensor for index, layer in enumerate(layers) for name, tensor in layer.tensors.items()}
    return save({name: np.ascontiguousarray(tensor) for name, tensor in named.items()})


def is_kind(kind: str) -> bool:
    """Whether a name is the ``kind`` of a layer."""
    activation = kind.removesuffix(_RESIDUAL)
    return kind in (_LAYER_NORM, _WORD_WEIGHTS) or activation in ACTIVATIONS or activation == SLOPED


def unpack(path: Path, digest: str, kinds: Sequence[str]) -> list[Layer]:
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
    from safetensors.numpy import load

    tensors = _tensors(path, lambda: load(content))
    layers: list[Layer] = []
    for index, kind in enumerate(kinds):
        weight = tensors[f"{index}.weight"]
        if kind == _WORD_WEIGHTS:
            layers.append(WordWeights(weight))
            continue
        bias = tensors[f"{index}.bias"]
        if kind == _LAYER_NORM:
            layers.append(LayerNorm(weight, bias))
            continue
        more = (tensors.get(f"{index}.{name}") for name in ("residual", "slope"))
        layers.append(Dense(weight, bias, kind.removesuffix(_RESIDUAL), kind.endswith(_RESIDUAL), *more))
    return layers


def tensors_of(path: Path, integers: Collection[str] = ()) -> Mapping[str, Array]:
    """The tensors of a module's file as float32.

    Args:
        path: the file, ``model.safetensors``; without it, ``pytorch_model.bin`` is read.
        integers: the tensors that may be of an integer type, which they keep.

    Raises:
        InvalidModel: it is missing or damaged.
    """
    if path.is_file():
        return _tensors(path, lambda: _opened(path), integers)
    pickled = path.with_name(PICKLED)
    if not pickled.is_file():
        raise InvalidModel(f"There is no {path}")
    return _unpickled(pickled, integers)


def _unpickled(path: Path, integers: Collection[str] = ()) -> Mapping[str, Array]:
    """The tensors that PyTorch pickled as float32."""
    opened = PickledTensors(path)
    return _floats({name: opened.get_tensor(name) for name in opened.keys()}, str(path), integers)  # noqa: SIM118


def _opened(path: Path) -> dict[str, npt.NDArray[Any]]:
    import ml_dtypes  # noqa: F401  # registers bfloat16, which `safe_open` then reads and `safetensors.numpy` does not
    from safetensors import safe_open

    with safe_open(path, framework="numpy") as opened:
        return {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118


def _tensors(
    path: Path, load: Callable[[], dict[str, npt.NDArray[Any]]], integers: Collection[str] = ()
) -> Mapping[str, Array]:
    """The tensors of a safetensors file as float32, from what ``load`` reads."""
    from safetensors import SafetensorError

    try:
        tensors = load()
    except (SafetensorError, OSError, AttributeError, KeyError, TypeError, ValueError) as error:
        raise InvalidModel(f"{path} does not contain the weights of a layer: {error!r}") from error
    return _floats(tensors, str(path), integers)


def _floats(tensors: Mapping[str, npt.NDArray[Any]], name: str, integers: Collection[str]) -> Mapping[str, Array]:
    for key, tensor in tensors.items():
        if key not in integers and tensor.dtype.kind != "f" and tensor.dtype.name != "bfloat16":
            raise InvalidModel(f"{name}: {key!r} must be of a floating-point type, got {tensor.dtype}")
    return {key: tensor if tensor.dtype.kind in "iu" else tensor.astype(np.float32) for key, tensor in tensors.items()}
