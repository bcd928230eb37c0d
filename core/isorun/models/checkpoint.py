"""Building graphs from Hugging Face checkpoints (``config.json`` and ``model.safetensors``), without PyTorch."""

from __future__ import annotations

import json
import re
import shutil
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from isorun.errors import InvalidModel, did_you_mean
from isorun.graph import code_digest
from isorun.models import rotary_config, sentences
from isorun.models.sentences import read_object
from isorun.system.cache import Cache, sha256

if TYPE_CHECKING:
    import onnx_ir as ir

    from isorun.graph.builders.architectures import Architecture
    from isorun.graph.builders.encoder import EncoderConfig

_ENTRY_MODEL = "model.onnx"
_TOKENIZER = "tokenizer.json"
_HEADS = {
    "ForSequenceClassification": "sequence-classification",
    "ForTokenClassification": "token-classification",
    "ForQuestionAnswering": "question-answering",
}
_FLOATS = ("F32", "F16", "BF16", "F64")
_LEGACY_NAMES = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
_LAYER_TENSOR = re.compile(r"\.layer\.\d+\.")
_BUFFERS = re.compile(r"(^|\.)position_ids$")  # a buffer in old checkpoints


class CheckpointWarning(UserWarning):
    """A checkpoint contains layers that its config does not count."""


def build(folder: Path, output: Path) -> list[str]:
    """Write the fused graph of a checkpoint, and its tokenizer as ``<stem>.tokenizer.json``.

    Args:
        folder: the checkpoint, with ``config.json`` and ``model.safetensors`` (or the shards in
            ``model.safetensors.index.json``).
        output: the ONNX file. Weights above 2 GiB are written to ``<stem>.weights.bin`` beside it.

    Returns:
        The names of the checkpoint's tensors that the graph does not use, such as a pretraining head.

    Raises:
        InvalidModel: the architecture is not supported, or the tensors do not match the config.
    """
    from isorun.graph.builders import encoder
    from isorun.graph.io import files

    settings = _settings(folder)
    if settings.get("model_type") in rotary_config.KINDS:
        model, weights = _rotary(folder, settings)
    else:
        architecture = _architecture(folder, settings)
        weights = _SafeTensors(folder, architecture.prefix)
        config = _config(folder, settings, architecture, weights)
        model = encoder.encoder(config, weights, folder.name)
    if settings_of_sentences := sentences.read(folder):
        model.metadata_props[sentences.METADATA] = settings_of_sentences.to_json()
    files.write(model, output, beside_above=files.SINGLE_FILE_LIMIT)
    tokenizer = folder / _TOKENIZER
    if tokenizer.is_file():
        shutil.copyfile(tokenizer, output.with_name(f"{output.stem}.{_TOKENIZER}"))
    return weights.unread()


def _rotary(folder: Path, settings: Mapping[str, Any]) -> tuple[ir.Model, _SafeTensors]:
    """The graph of an encoder with rotary positions. It gives hidden states; heads are left out."""
    from isorun.graph.builders import rotary

    config = rotary_config.read(settings, lambda why: InvalidModel(f"{folder / 'config.json'}: {why}"))
    weights = _SafeTensors(folder, config.family.prefix)
    config = replace(config, pooler="pooler.dense.weight" in weights)
    return rotary.encoder(config, weights, folder.name), weights


def build_cached(folder: Path, cache: Cache) -> Path:
    """The fused graph of a checkpoint, from the cache if it was built before.

    Warns:
        CheckpointWarning: the checkpoint has more layers than ``config.json``, which are omitted.
    """
    if not (folder / "config.json").is_file():
        raise InvalidModel(
            f"{folder} is a folder without a config.json. Pass an ONNX file or the folder of a checkpoint"
        )

    def make(output_folder: Path) -> dict[str, Any]:
        return {"left_out": build(folder, output_folder / _ENTRY_MODEL)}

    names = ["config.json", _TOKENIZER, *sentences.files(folder)]
    present = [name for name in names if (folder / name).is_file()]
    present += [path.name for path in _weight_files(folder)]
    # With names, so that adding a file changes the key as well as editing one.
    prints = [[name, cache.fingerprint([folder / name].copy, folder / name)] for name in present]
    key = sha256(json.dumps([code_digest(), prints]).encode())[:40]
    entry = cache.get_or_make("built", key, make)
    if layers := [name for name in entry.meta["left_out"] if _LAYER_TENSOR.search(name)]:
        warnings.warn(
            f"{folder} has {len(layers)} tensors of layers that its config.json does not count (the first is "
            f"{layers[0]!r}); they are omitted",
            CheckpointWarning,
            stacklevel=2,
        )
    return entry.folder / _ENTRY_MODEL


class _SafeTensors:
    """The tensors of a checkpoint, with or without the prefix that models with a head add to the encoder's names."""

    def __init__(self, folder: Path, prefix: str) -> None:
        from safetensors import SafetensorError, safe_open

        self._files: dict[str, Any] = {}
        self._folder = folder
        self._prefix = prefix
        for path in _weight_files(folder):
            try:
                opened: Any = safe_open(path, framework="numpy")
            except (SafetensorError, OSError) as error:
                raise InvalidModel(f"{path} cannot be read as safetensors: {error}") from error
            self._files.update((name, opened) for name in opened.keys())  # noqa: SIM118 (not a mapping: it has only keys)
        self._read: set[str] = set()

    def __contains__(self, name: str) -> bool:
        return self._find(name) is not None

    def check(self, name: str, shape: tuple[int, ...]) -> None:
        """Check that a tensor can be read.

        Raises:
            InvalidModel: it is missing, or has another shape or a type that weights do not have.
        """
        stored = self._find(name)
        if stored is None:
            raise InvalidModel(f"{self._folder} has no tensor {name!r}{did_you_mean(name, self._files)}")
        stored_slice = self._files[stored].get_slice(stored)
        actual, dtype = tuple(stored_slice.get_shape()), stored_slice.get_dtype()
        if actual != shape:
            raise InvalidModel(
                f"{self._folder}: {stored!r} must have shape {shape} according to config.json, got {actual}"
            )
        if dtype not in _FLOATS:
            raise InvalidModel(f"{self._folder}: {stored!r} must be one of {', '.join(_FLOATS)}, got {dtype}")

    def read(self, name: str, shape: tuple[int, ...]) -> np.ndarray:
        """Read a tensor as float32."""
        self.check(name, shape)
        stored = self._find(name)
        assert stored is not None
        self._read.add(stored)
        return np.asarray(self._files[stored].get_tensor(stored), dtype=np.float32)

    def unread(self) -> list[str]:
        """The tensors that were not read."""
        return sorted(name for name in self._files if name not in self._read and not _BUFFERS.search(name))

    def _find(self, name: str) -> str | None:
        for candidate in (name, f"{self._prefix}.{name}"):
            if candidate in self._files:
                return candidate
            for new, old in _LEGACY_NAMES.items():
                if candidate.endswith(new) and (older := candidate.removesuffix(new) + old) in self._files:
                    return older
        return None


def _weight_files(folder: Path) -> list[Path]:
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        shards = read_object(index).get("weight_map")
        if not isinstance(shards, dict) or not shards or not all(isinstance(name, str) for name in shards.values()):
            raise InvalidModel(f"{index} must have a weight_map from tensors to file names")
        names = sorted(set(shards.values()))
        if outside := [name for name in names if Path(name).name != name or name == ".."]:
            raise InvalidModel(f"{index} refers to {outside[0]!r}, which is outside its folder")
        if missing := [name for name in names if not (folder / name).is_file()]:
            raise InvalidModel(f"{index} refers to {missing[0]!r}, which does not exist")
        return [folder / name for name in names]
    single = folder / "model.safetensors"
    if not single.is_file():
        raise InvalidModel(f"{folder} has no model.safetensors (other weight formats are not supported)")
    return [single]


def _architecture(folder: Path, settings: Mapping[str, Any]) -> Architecture:
    from isorun.graph.builders.architectures import ARCHITECTURES, JINA

    kind = settings.get("model_type")
    if not isinstance(kind, str) or kind not in ARCHITECTURES:
        names = ", ".join((*ARCHITECTURES, *rotary_config.KINDS))
        raise InvalidModel(f"{folder / 'config.json'}: model_type must be one of {names}, got {kind!r}")
    return JINA if kind == "bert" and settings.get("position_embedding_type") == "alibi" else ARCHITECTURES[kind]


def _config(
    folder: Path, settings: Mapping[str, Any], architecture: Architecture, weights: _SafeTensors
) -> EncoderConfig:
    from isorun.graph.builders.encoder import ACTIVATIONS, EncoderConfig

    def invalid(why: str) -> InvalidModel:
        return InvalidModel(f"{folder / 'config.json'}: {why}")

    sizes = {}
    for size, key in architecture.sizes.items():
        sizes[size] = settings.get(key, architecture.defaults.get(size))
        usual = size in architecture.defaults and sizes[size] == architecture.defaults[size]
        if not (usual or _is_count(sizes[size])):
            raise invalid(f"{key} must be an integer above 0, got {sizes[size]!r}")
    if architecture.builder != "t5" and sizes["hidden_size"] % sizes["num_attention_heads"]:
        width, heads = architecture.sizes["hidden_size"], architecture.sizes["num_attention_heads"]
        raise invalid(
            f"{width} must be a multiple of {heads}, got {sizes['hidden_size']} and {sizes['num_attention_heads']}"
        )
    if not 4 <= (buckets := sizes.get("relative_attention_num_buckets", 32)) < 512:
        raise invalid(f"relative_attention_num_buckets must be 4 to 511, got {buckets}")
    key, default = architecture.activation
    activation = settings.get(key, default)
    if not isinstance(activation, str) or activation not in ACTIVATIONS:
        raise invalid(f"unsupported {key} {activation!r}{did_you_mean(str(activation), ACTIVATIONS)}")
    if architecture.builder != "jina" and settings.get("position_embedding_type", "absolute") != "absolute":
        raise invalid(f"position_embedding_type must be 'absolute', got {settings['position_embedding_type']!r}")
    if settings.get("is_decoder") or settings.get("add_cross_attention"):
        raise invalid("decoders are not supported, only encoders")
    epsilon = settings.get("layer_norm_eps", 1e-12)
    if type(epsilon) not in (int, float) or not 0 <= epsilon < 1:
        raise invalid(f"layer_norm_eps must be a number of at least 0 and below 1, got {epsilon!r}")
    architectures = settings.get("architectures") or []
    if not isinstance(architectures, list) or not all(isinstance(name, str) for name in architectures):
        raise invalid(f"architectures must be a list of names, got {architectures!r}")
    head = _head(architectures)
    pooler = architecture.pooler is not None and f"{architecture.pooler}.weight" in weights
    if head == "sequence-classification" and architecture.classifies_pooled and not pooler:
        raise invalid("the sequence classifier needs a pooler, which the checkpoint does not contain")
    return EncoderConfig(
        **sizes,
        layer_norm_eps=float(epsilon),
        hidden_act=activation,
        pooler=pooler,
        head=head,
        labels=_labels(settings, invalid),
        architecture=architecture,
        settings=settings,
        pad_token_id=_padding_id(settings, architecture, sizes["vocab_size"], invalid),
    )


def _padding_id(
    settings: Mapping[str, Any], architecture: Architecture, words: int, invalid: Callable[[str], InvalidModel]
) -> int:
    """The id that position counts skip; 0 if the architecture does not count."""
    if architecture.padding_id is None or architecture.fixed_padding_id:
        return architecture.padding_id or 0
    padding_id = settings.get("pad_token_id", architecture.padding_id)
    if type(padding_id) is not int or not 0 <= padding_id < words:
        raise invalid(f"pad_token_id must be an integer from 0 to {words - 1}, got {padding_id!r}")
    return padding_id


def _labels(settings: Mapping[str, Any], invalid: Callable[[str], InvalidModel]) -> int:
    """The number of a classifier's classes; 2 by default."""
    if "id2label" in settings:
        names = settings["id2label"]
        if not isinstance(names, dict) or not names:
            raise invalid(f"id2label must be an object with a name for each class, got {names!r}")
        return len(names)
    count = settings.get("num_labels", 2)
    if not _is_count(count):
        raise invalid(f"num_labels must be an integer above 0, got {count!r}")
    return int(count)


def _is_count(value: object) -> bool:
    return type(value) is int and value > 0


def _head(architectures: Iterable[str]) -> str | None:
    for architecture in architectures:
        for ending, head in _HEADS.items():
            if architecture.endswith(ending):
                return head
    return None


def _settings(folder: Path) -> Mapping[str, Any]:
    path = folder / "config.json"
    if not path.is_file():
        raise InvalidModel(f"{folder} is not a checkpoint: it has no config.json")
    return read_object(path)
