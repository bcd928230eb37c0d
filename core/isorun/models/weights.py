"""The tensors of a checkpoint: every one is read, or accounted for."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from isorun.errors import InvalidModel, UnsupportedModel, did_you_mean
from isorun.models.keys import read_object
from isorun.models.pickled_weights import PickledTensors
from isorun.system.cache import Cache, sha256
from isorun.system.paths import inside

SAFETENSORS, PICKLED = "model.safetensors", "pytorch_model.bin"
"""The names of a checkpoint's weights, in the order of preference."""

_FLOATS = ("F32", "F16", "BF16", "F64")
_LEGACY_NAMES = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
_WRAPPERS = ("model.", "module.", "_orig_mod.", "0.auto_model.", "auto_model.", "new.")
"""What training tools put before every name."""

_BUFFERS = re.compile(r"(^|\.)(position_ids|token_type_ids|inv_freq|masked_bias)$")
_LAYER = re.compile(r"(^|\.)(layer|layers|block|albert_layers|albert_layer_groups)\.\d+\.")
_HEAD = re.compile(
    r"(^|\.)(cls|lm_head|classifier|pre_classifier|classification_head|qa_outputs|score|head|pooler|decoder|predictions|sop_classifier"
    r"|generator_predictions|generator_lm_head|discriminator_predictions|mask_predictions|lm_predictions|vocab_transform"
    r"|vocab_layer_norm|vocab_projector)\.|^linear\."  # the last one: the projection of Stanford's ColBERT
)


@dataclass(frozen=True)
class Unused:
    """The tensors of a checkpoint that its graph does not use.

    Attributes:
        heads: of heads, such as that of pretraining.
        layers: of layers that ``config.json`` does not count.
    """

    heads: list[str]
    layers: list[str]


class SafeTensors:
    """The tensors of a checkpoint, with or without the prefix that models with a head add to the encoder's names."""

    def __init__(self, folder: Path, prefix: str) -> None:
        from safetensors import SafetensorError, safe_open

        stored: dict[str, Any] = {}
        self._folder = folder
        self._prefix = prefix
        for path in weight_files(folder):
            opened: Any
            try:
                pickled = path.suffix != ".safetensors"
                opened = PickledTensors(path) if pickled else safe_open(path, framework="numpy")
            except (SafetensorError, OSError) as error:
                raise InvalidModel(f"{path} cannot be read as safetensors: {error}") from error
            stored.update((name, opened) for name in opened.keys())  # noqa: SIM118 (not a mapping: it has only keys)
        self._files = stored
        self._stored_names = {name: name for name in stored}
        self._unwrap()
        self._used: set[str] = set()

    def __contains__(self, name: str) -> bool:
        return self._find(name) is not None

    def stores(self, dtype: str) -> bool:
        """Whether any tensor is of a type, by the name in the file's header."""
        return any(opened.get_slice(name).get_dtype() == dtype for name, opened in self._files.items())

    def check(self, name: str, shape: tuple[int, ...]) -> None:
        """Check that a tensor can be read.

        Raises:
            InvalidModel: it is missing, or has another shape or a type that weights do not have.
        """
        stored, stored_slice = self._slice(name)
        actual, dtype = tuple(stored_slice.get_shape()), stored_slice.get_dtype()
        if actual != shape:
            raise InvalidModel(
                f"{self._folder}: {stored!r} must have shape {shape} according to config.json, got {actual}"
            )
        if dtype not in _FLOATS:
            raise InvalidModel(f"{self._folder}: {stored!r} must be one of {', '.join(_FLOATS)}, got {dtype}")
        self._used.add(stored)

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of a tensor.

        Raises:
            InvalidModel: it is missing.
        """
        return tuple(self._slice(name)[1].get_shape())

    def read(self, name: str, shape: tuple[int, ...]) -> np.ndarray:
        """Read a tensor as float32."""
        self.check(name, shape)
        stored, _ = self._slice(name)
        return np.asarray(self._files[stored].get_tensor(stored), dtype=np.float32)

    def account(self, name: str) -> None:
        """Count a tensor as used, if there is one, since another takes its place."""
        if (stored := self._find(name)) is not None:
            self._used.add(stored)

    def preferred(self, *names: str) -> str:
        """The first of some tensors that is stored, or else the last one. The others count as used."""
        chosen = next((name for name in names if name in self), names[-1])
        for name in names:
            self.account(name)
        return chosen

    def unused(self, layers: int) -> Unused:
        """The tensors that were not checked, once the graph is built.

        Args:
            layers: the number of layers that were built.

        Raises:
            UnsupportedModel: a tensor is part of the layers or embeddings that were built, so the result would be
                another model's.
        """
        heads: list[str] = []
        more: list[str] = []
        strange: list[str] = []
        for name in sorted(self._files):
            if name in self._used or _BUFFERS.search(name):
                continue
            if match := _LAYER.search(name):
                number = int(re.findall(r"\d+", match[0])[0])
                head = _HEAD.search(name[: match.start() + 1])
                (heads if head else more if number >= layers else strange).append(name)
            else:
                (heads if _HEAD.search(name) else strange).append(name)
        if strange:
            raise UnsupportedModel(
                f"{self._folder} has {len(strange)} tensors that are no part of the architecture in config.json, the "
                f"first is {strange[0]!r}. Merge adapters into the weights, or export the model to ONNX"
            )
        return Unused(heads, more)

    def _slice(self, name: str) -> tuple[str, Any]:
        """The name in the file, and what reads the tensor.

        Raises:
            InvalidModel: it is missing.
        """
        stored = self._find(name)
        if stored is None:
            raise InvalidModel(f"{self._folder} has no tensor {name!r}{did_you_mean(name, self._stored_names)}")
        return stored, self._files[stored].get_slice(stored)

    def _unwrap(self) -> None:
        """Remove prefixes that all names have."""
        names = self._stored_names
        while names and (
            prefix := next((prefix for prefix in _WRAPPERS if all(name.startswith(prefix) for name in names)), None)
        ):
            names = {name.removeprefix(prefix): stored for name, stored in names.items()}
        self._stored_names = names

    def _find(self, name: str) -> str | None:
        names = self._stored_names
        for candidate in (name, f"{self._prefix}.{name}"):
            if candidate in names:
                return names[candidate]
            for new, old in _LEGACY_NAMES.items():
                if candidate.endswith(new) and (older := candidate.removesuffix(new) + old) in names:
                    return names[older]
        return None


def weight_files(folder: Path) -> list[Path]:
    """The files with a checkpoint's weights: safetensors, or else what PyTorch pickled.

    Raises:
        InvalidModel: there are none, or the index is damaged or refers to files outside the folder.
    """
    for single in (SAFETENSORS, PICKLED):
        index = folder / f"{single}.index.json"
        if index.is_file():
            return _shards(folder, index)
        if (folder / single).is_file():
            return [inside(folder, single)]
    raise InvalidModel(f"{folder} is not a checkpoint: it has no {SAFETENSORS} and no {PICKLED}")


def digest(folder: Path, cache: Cache) -> str:
    """SHA-256 over ``config.json`` and the weights (hexadecimal): a model, whatever its folder and
    the version of isorun that builds its graph.

    Raises:
        InvalidModel: as :func:`weight_files`.
    """
    config = folder / "config.json"
    paths = [*([config] if config.is_file() else []), *weight_files(folder)]
    return sha256("".join(cache.fingerprint([path].copy, path) for path in paths).encode())


def _shards(folder: Path, index: Path) -> list[Path]:
    shards: Mapping[str, Any] | None = read_object(inside(folder, index.name)).get("weight_map")
    if not isinstance(shards, dict) or not shards or not all(isinstance(name, str) for name in shards.values()):
        raise InvalidModel(f"{index} must have a weight_map from tensors to file names")
    names = sorted(set(shards.values()))
    if outside := [name for name in names if Path(name).name != name or name == ".."]:
        raise InvalidModel(f"{index} refers to {outside[0]!r}, which is outside its folder")
    if missing := [name for name in names if not (folder / name).is_file()]:
        raise InvalidModel(f"{index} refers to {missing[0]!r}, which does not exist")
    return [inside(folder, name) for name in names]
