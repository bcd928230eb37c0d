"""Hugging Face checkpoints of encoders, read without PyTorch: ``config.json`` and ``model.safetensors``."""

from __future__ import annotations

import json
import re
import shutil
import warnings
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from isorun.errors import InvalidModel, did_you_mean
from isorun.graph import code_digest
from isorun.system.cache import Cache, sha256

if TYPE_CHECKING:
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
_OLD_NAMES = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
_OF_A_LAYER = re.compile(r"\.layer\.\d+\.")
_NO_WEIGHTS = re.compile(r"(^|\.)position_ids$")  # a buffer that old checkpoints hold


class CheckpointWarning(UserWarning):
    """A checkpoint has more than its config says."""


def build(folder: Path, output: Path) -> list[str]:
    """Write the fused graph of a checkpoint, and its tokenizer beside it as ``<stem>.tokenizer.json``.

    Args:
        folder: holds ``config.json`` and ``model.safetensors`` (or the shards that
            ``model.safetensors.index.json`` names).
        output: the ONNX file. Above 2 GiB the weights are beside it, in ``<stem>.weights.bin``.

    Returns:
        The names of the checkpoint's tensors that the graph has no place for, such as a head for pretraining.

    Raises:
        InvalidModel: no checkpoint of an encoder that is read, or one whose tensors do not fit its config.
    """
    from isorun.graph.builders import encoder
    from isorun.graph.io import files

    settings = _settings(folder)
    architecture = _architecture(folder, settings)
    weights = _SafeTensors(folder, architecture.prefix)
    config = _config(folder, settings, architecture, weights)
    model = encoder.encoder(config, weights, folder.name)
    if pooling := _pooling(folder):
        model.metadata_props["isorun.pooling"] = pooling
    files.write(model, output, beside_above=files.SINGLE_FILE_LIMIT)
    tokenizer = folder / _TOKENIZER
    if tokenizer.is_file():
        shutil.copyfile(tokenizer, output.with_name(f"{output.stem}.{_TOKENIZER}"))
    return weights.unread()


def build_cached(folder: Path, cache: Cache) -> Path:
    """The fused graph of a checkpoint, built where the cache does not have it yet.

    Warns, with a :class:`CheckpointWarning`, of layers that are left out because ``config.json`` has fewer.
    """
    if not (folder / "config.json").is_file():
        raise InvalidModel(
            f"{folder} is a folder without a config.json: give an ONNX file, or the folder of a checkpoint"
        )

    def make(place: Path) -> dict[str, Any]:
        return {"left_out": build(folder, place / _ENTRY_MODEL)}

    names = ["config.json", _TOKENIZER, "pooling.json", "1_Pooling/config.json"]
    present = [name for name in names if (folder / name).is_file()]
    present += [path.name for path in _weight_files(folder)]
    # One by one: a file that appears later counts as well as one that changes.
    prints = [[name, cache.fingerprint([folder / name].copy, folder / name)] for name in present]
    key = sha256(json.dumps([code_digest(), prints]).encode())[:40]
    entry = cache.get_or_make("built", key, make)
    if layers := [name for name in entry.meta["left_out"] if _OF_A_LAYER.search(name)]:
        warnings.warn(
            f"{folder} has {len(layers)} tensors of layers that its config.json does not count, {layers[0]!r} the "
            "first: they are left out",
            CheckpointWarning,
            stacklevel=2,
        )
    return entry.folder / _ENTRY_MODEL


class _SafeTensors:
    """The tensors of a checkpoint, with or without the prefix that its heads put before the encoder's names."""

    def __init__(self, folder: Path, prefix: str) -> None:
        from safetensors import SafetensorError, safe_open

        self._files: dict[str, Any] = {}
        self._folder = folder
        self._prefix = prefix
        for path in _weight_files(folder):
            try:
                opened: Any = safe_open(path, framework="numpy")
            except (SafetensorError, OSError) as error:
                raise InvalidModel(f"{path} is no readable safetensors file: {error}") from error
            self._files.update((name, opened) for name in opened.keys())  # noqa: SIM118 (no mapping: it has keys alone)
        self._read: set[str] = set()

    def __contains__(self, name: str) -> bool:
        return self._find(name) is not None

    def check(self, name: str, shape: tuple[int, ...]) -> None:
        """Refuse a tensor that cannot be read.

        Raises:
            InvalidModel: there is none, or it has another shape, or its numbers are no weights'.
        """
        stored = self._find(name)
        if stored is None:
            raise InvalidModel(f"{self._folder} has no tensor {name!r}{did_you_mean(name, self._files)}")
        there = self._files[stored].get_slice(stored)
        found, dtype = tuple(there.get_shape()), there.get_dtype()
        if found != shape:
            raise InvalidModel(f"{self._folder}: {stored!r} is {found}; by config.json it should be {shape}")
        if dtype not in _FLOATS:
            raise InvalidModel(f"{self._folder}: {stored!r} holds {dtype}; {', '.join(_FLOATS)} are read")

    def read(self, name: str, shape: tuple[int, ...]) -> np.ndarray:
        """The tensor of that name as float32."""
        self.check(name, shape)
        stored = self._find(name)
        assert stored is not None
        self._read.add(stored)
        return np.asarray(self._files[stored].get_tensor(stored), dtype=np.float32)

    def unread(self) -> list[str]:
        """The tensors that nobody has asked for."""
        return sorted(name for name in self._files if name not in self._read and not _NO_WEIGHTS.search(name))

    def _find(self, name: str) -> str | None:
        for candidate in (name, f"{self._prefix}.{name}"):
            if candidate in self._files:
                return candidate
            for new, old in _OLD_NAMES.items():
                if candidate.endswith(new) and (older := candidate.removesuffix(new) + old) in self._files:
                    return older
        return None


def _weight_files(folder: Path) -> list[Path]:
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        places = _json(index).get("weight_map")
        if not isinstance(places, dict) or not places or not all(isinstance(name, str) for name in places.values()):
            raise InvalidModel(f"{index} has no weight_map from tensors to the files that hold them")
        names = sorted(set(places.values()))
        if outside := [name for name in names if Path(name).name != name or name == ".."]:
            raise InvalidModel(f"{index} names the file {outside[0]!r}, which is outside its folder")
        if missing := [name for name in names if not (folder / name).is_file()]:
            raise InvalidModel(f"{index} names the file {missing[0]!r}, which is not there")
        return [folder / name for name in names]
    single = folder / "model.safetensors"
    if not single.is_file():
        raise InvalidModel(f"{folder} has no model.safetensors (weights in other formats are not read)")
    return [single]


def _architecture(folder: Path, settings: Mapping[str, Any]) -> Architecture:
    from isorun.graph.builders.architectures import ARCHITECTURES

    kind = settings.get("model_type")
    if not isinstance(kind, str) or kind not in ARCHITECTURES:
        raise InvalidModel(
            f"{folder / 'config.json'}: model_type is {kind!r}; checkpoints of {', '.join(ARCHITECTURES)} are read"
        )
    return ARCHITECTURES[kind]


def _config(
    folder: Path, settings: Mapping[str, Any], architecture: Architecture, weights: _SafeTensors
) -> EncoderConfig:
    from isorun.graph.builders.encoder import ACTIVATIONS, EncoderConfig

    def refuse(why: str) -> InvalidModel:
        return InvalidModel(f"{folder / 'config.json'}: {why}")

    sizes = {}
    for size, key in architecture.sizes.items():
        sizes[size] = settings.get(key, architecture.defaults.get(size))
        if not _is_count(sizes[size]):
            raise refuse(f"{key} is {sizes[size]!r}; it has to be a whole number above 0")
    if sizes["hidden_size"] % sizes["num_attention_heads"]:
        width, heads = architecture.sizes["hidden_size"], architecture.sizes["num_attention_heads"]
        raise refuse(f"{width} {sizes['hidden_size']} is no multiple of {heads} {sizes['num_attention_heads']}")
    if not 4 <= (buckets := sizes.get("relative_attention_num_buckets", 32)) < 512:
        raise refuse(f"relative_attention_num_buckets is {buckets}; 4 to 511 are read")
    key, usual = architecture.activation
    activation = settings.get(key, usual)
    if not isinstance(activation, str) or activation not in ACTIVATIONS:
        raise refuse(f"{key} is {activation!r}{did_you_mean(str(activation), ACTIVATIONS)}")
    if settings.get("position_embedding_type", "absolute") != "absolute":
        raise refuse(f"position_embedding_type is {settings['position_embedding_type']!r}; 'absolute' is read")
    if settings.get("is_decoder") or settings.get("add_cross_attention"):
        raise refuse("it is a decoder; encoders are read")
    epsilon = settings.get("layer_norm_eps", 1e-12)
    if type(epsilon) not in (int, float) or not 0 <= epsilon < 1:
        raise refuse(f"layer_norm_eps is {epsilon!r}; it has to be a number from 0 to 1")
    architectures = settings.get("architectures") or []
    if not isinstance(architectures, list) or not all(isinstance(name, str) for name in architectures):
        raise refuse(f"architectures is {architectures!r}; it has to be a list of names")
    head = _head(architectures)
    pooler = architecture.pooler is not None and f"{architecture.pooler}.weight" in weights
    if head == "sequence-classification" and architecture.classifies_pooled and not pooler:
        raise refuse("it is a sequence classifier, and the checkpoint has no pooler for it to stand on")
    return EncoderConfig(
        **sizes,
        layer_norm_eps=float(epsilon),
        hidden_act=activation,
        pooler=pooler,
        head=head,
        labels=_labels(settings, refuse),
        architecture=architecture,
        pad_token_id=_padding_id(settings, architecture, sizes["vocab_size"], refuse),
    )


def _padding_id(
    settings: Mapping[str, Any], architecture: Architecture, words: int, refuse: Callable[[str], InvalidModel]
) -> int:
    """The id that positions are counted without, where the architecture counts so."""
    if architecture.padding_id is None or architecture.fixed_padding_id:
        return architecture.padding_id or 0
    padding = settings.get("pad_token_id", architecture.padding_id)
    if type(padding) is not int or not 0 <= padding < words:
        raise refuse(f"pad_token_id is {padding!r}; it has to be an id, from 0 to {words - 1}")
    return padding


def _labels(settings: Mapping[str, Any], refuse: Callable[[str], InvalidModel]) -> int:
    """How many classes a classifier tells apart: two where the config says nothing."""
    if "id2label" in settings:
        names = settings["id2label"]
        if not isinstance(names, dict) or not names:
            raise refuse(f"id2label is {names!r}; it has to be an object with a name for each class")
        return len(names)
    count = settings.get("num_labels", 2)
    if not _is_count(count):
        raise refuse(f"num_labels is {count!r}; it has to be a whole number above 0")
    return int(count)


def _is_count(value: object) -> bool:
    return type(value) is int and value > 0


def _head(architectures: Iterable[str]) -> str | None:
    for architecture in architectures:
        for ending, head in _HEADS.items():
            if architecture.endswith(ending):
                return head
    return None


def _pooling(folder: Path) -> str | None:
    """How sentence-transformers pools this checkpoint's hidden states: ``mean`` or ``cls``, where it says so."""
    for name in ("pooling.json", "1_Pooling/config.json"):
        if (folder / name).is_file():
            modes = _json(folder / name)
            if modes.get("pooling_mode_mean_tokens"):
                return "mean"
            if modes.get("pooling_mode_cls_token"):
                return "cls"
    return None


def _settings(folder: Path) -> Mapping[str, Any]:
    path = folder / "config.json"
    if not path.is_file():
        raise InvalidModel(f"{folder} has no config.json: it is no checkpoint")
    return _json(path)


def _json(path: Path) -> Mapping[str, Any]:
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError, RecursionError) as error:
        raise InvalidModel(f"{path} cannot be read: {error}") from error
    if not isinstance(content, dict):
        raise InvalidModel(f"{path} holds a {type(content).__name__}; an object is due")
    return content
