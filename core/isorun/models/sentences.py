"""What sentence-transformers saves beside a model: how token vectors become one vector, prompts, and limits.

Three sources, in this order: ``modules.json`` and its folders; a lone ``1_Pooling/config.json``; the metadata of an
ONNX file that ``isorun build`` wrote from such a folder.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from isorun.errors import InvalidModel, UnsupportedModel

METADATA = "isorun.sentences"
"""The metadata property of an ONNX file that keeps the settings of its checkpoint, as JSON."""

POOLINGS = ("mean", "cls", "max", "lasttoken", "weightedmean", "mean_sqrt_len_tokens")
"""How token vectors become one vector, by sentence-transformers' names."""

MODULE_FILE = re.compile(r"(\d+_\w+)/(config\.json|model\.safetensors)")
"""A file of one of sentence-transformers' modules; ``1_Pooling.config.json`` in the cache, which has no sub-folders."""

NORMALIZE = "normalize"
_SETTINGS = re.compile(r"sentence_\w+_config\.json")
_OLD_MODES = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
_UNLIMITED = 10**9  # transformers writes 1e30 where a tokenizer has no limit

Array = npt.NDArray[np.float32]
ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "Identity": lambda values: values,
    "Tanh": np.tanh,
    "ReLU": lambda values: np.maximum(values, np.float32(0)),
    "Sigmoid": lambda values: 0.5 + 0.5 * np.tanh(0.5 * values),  # exp() would overflow
}
"""The activations of dense layers and of classifiers, by PyTorch's names."""


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


@dataclass(frozen=True)
class SentenceSettings:
    """How a sentence model is used.

    Attributes:
        pooling: one or more of :data:`POOLINGS`, whose results are concatenated; empty if unknown.
        include_prompt: whether the tokens of a prompt count in pooling.
        steps: what follows pooling, in order: dense layers and ``"normalize"``.
        max_tokens: the maximum number of tokens of a text, special tokens included; ``None`` for the model's.
        lower_case: whether text is converted to lower case before the tokenizer does what it does.
        prompts: texts to put before a text, by name.
        default_prompt: the name of the prompt to use where none is named.
    """

    pooling: tuple[str, ...] = ()
    include_prompt: bool = True
    steps: tuple[Dense | str, ...] = ()
    max_tokens: int | None = None
    lower_case: bool = False
    prompts: Mapping[str, str] = field(default_factory=dict)
    default_prompt: str | None = None

    def to_json(self) -> str:
        """For an ONNX file's metadata. Of a dense layer it keeps only that there is one."""
        steps = [step if isinstance(step, str) else "dense" for step in self.steps]
        return json.dumps({**asdict(replace(self, steps=())), "steps": steps})

    @classmethod
    def from_json(cls, text: str) -> SentenceSettings:
        """The inverse of :meth:`to_json`, with the word ``"dense"`` in place of a dense layer."""
        fields = json.loads(text)
        return cls(**{**fields, "pooling": tuple(fields["pooling"]), "steps": tuple(fields["steps"])})


def read(folder: Path) -> SentenceSettings | None:
    """The settings in a checkpoint's folder; ``None`` if it is not of a sentence model.

    Raises:
        InvalidModel: a file is damaged.
        UnsupportedModel: a module, pooling or activation that isorun does not have.
    """
    listed = _read(folder / "modules.json") if (folder / "modules.json").is_file() else None
    if listed is None:
        pooling = _module_file(folder, "1_Pooling", "config.json")
        return SentenceSettings(**_pooling(pooling), **_limits(folder)) if pooling.is_file() else None
    if not isinstance(listed, list) or not all(isinstance(module, dict) and "type" in module for module in listed):
        raise InvalidModel(f"{folder / 'modules.json'} must be a list of objects with a type")
    settings: dict[str, Any] = {"steps": ()}
    for module in listed:
        kind, path = str(module["type"]).rpartition(".")[2], str(module.get("path", ""))
        if kind == "Transformer":
            settings |= _limits(folder / path)
        elif kind == "Pooling":
            settings |= _pooling(_module_file(folder, path, "config.json"))
        elif kind == "Dense":
            settings["steps"] += (_dense(folder, path),)
        elif kind == "Normalize":
            settings["steps"] += (NORMALIZE,)
        else:
            raise UnsupportedModel(
                f"{folder / 'modules.json'} has a module of type {kind}. Supported: Transformer, Pooling, Dense, "
                "Normalize"
            )
    return SentenceSettings(**settings, **_prompts(folder))


def files(folder: Path) -> list[str]:
    """The files that :func:`read` may read, relative to the folder, apart from dense layers' weights."""
    names = ("modules.json", "tokenizer_config.json", "config_sentence_transformers.json", "sentence_*_config.json")
    patterns = (*names, "*_*/config.json", "*_*.config.json")
    return sorted(path.relative_to(folder).as_posix() for pattern in patterns for path in folder.glob(pattern))


def transformer_folder(folder: Path) -> Path:
    """The folder of the transformer in a sentence model's folder: the folder itself, or that of its first module."""
    first = folder / "0_Transformer"
    return first if first.is_dir() and not (folder / "config.json").is_file() else folder


def token_limit(folder: Path) -> int | None:
    """The maximum number of tokens by the tokenizer's own configuration; ``None`` if it has none."""
    limit = _tokenizer_config(folder).get("model_max_length")
    return int(limit) if isinstance(limit, int | float) and 1 <= limit < _UNLIMITED else None


def _tokenizer_config(folder: Path) -> Mapping[str, Any]:
    path = folder / "tokenizer_config.json"
    return read_object(path) if path.is_file() else {}


def _limits(folder: Path) -> dict[str, Any]:
    path = next((path for path in sorted(folder.glob("*.json")) if _SETTINGS.fullmatch(path.name)), None)
    fields = {} if path is None else read_object(path)
    return {
        "max_tokens": fields.get("max_seq_length") or token_limit(folder),
        "lower_case": bool(fields.get("do_lower_case", False)),
    }


def _prompts(folder: Path) -> dict[str, Any]:
    path = folder / "config_sentence_transformers.json"
    fields = read_object(path) if path.is_file() else {}
    return {"prompts": fields.get("prompts") or {}, "default_prompt": fields.get("default_prompt_name")}


def _pooling(path: Path) -> dict[str, Any]:
    fields = read_object(path)
    modes = fields.get("pooling_mode", [mode for key, mode in _OLD_MODES.items() if fields.get(key)] or "mean")
    modes = (modes,) if isinstance(modes, str) else tuple(modes)
    if unknown := [mode for mode in modes if mode not in POOLINGS]:
        raise UnsupportedModel(f"{path} has the pooling {unknown[0]!r}. Supported: {', '.join(POOLINGS)}")
    return {"pooling": modes, "include_prompt": fields.get("include_prompt", True)}


def _dense(folder: Path, path: str) -> Dense:
    config, weights = (_module_file(folder, path, name) for name in ("config.json", "model.safetensors"))
    fields = read_object(config)
    activation = str(fields.get("activation_function", "Tanh")).rpartition(".")[2]
    if activation not in ACTIVATIONS:
        raise UnsupportedModel(f"{config}: unsupported activation {activation}. Supported: {', '.join(ACTIVATIONS)}")
    names = [fields.get(key) or "sentence_embedding" for key in ("module_input_name", "module_output_name")]
    if names != ["sentence_embedding"] * 2 or fields.get("use_residual"):
        raise UnsupportedModel(f"{config}: only dense layers after pooling and without a residual are supported")
    if not weights.is_file():
        raise InvalidModel(f"There is no {weights}. isorun does not read pytorch_model.bin, since it is a pickle")
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    try:
        tensors = load_file(weights)
        weight = tensors["linear.weight"].astype(np.float32)
    except (SafetensorError, KeyError, TypeError) as error:
        raise InvalidModel(f"{weights} does not contain a dense layer's weights: {error!r}") from error
    bias = tensors.get("linear.bias", np.zeros(len(weight), np.float32))
    return Dense(weight, bias.astype(np.float32), activation)


def _module_file(folder: Path, module: str, name: str) -> Path:
    flat = folder / f"{module}.{name}"
    return flat if flat.is_file() else folder / module / name


def read_object(path: Path) -> Mapping[str, Any]:
    """A JSON object in a file.

    Raises:
        InvalidModel: the file cannot be read, or holds something else.
    """
    content = _read(path)
    if not isinstance(content, dict):
        raise InvalidModel(f"{path} must contain an object, got {type(content).__name__}")
    return content


def _read(path: Path) -> Any:
    try:
        return json.loads(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise InvalidModel(f"{path} cannot be read: {error}") from error
