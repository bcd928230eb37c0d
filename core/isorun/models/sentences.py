"""What sentence-transformers saves beside a model: how token vectors become one vector, prompts, limits, activations.

Three sources, in this order: the metadata of an ONNX file that ``isorun build`` wrote; ``modules.json`` and its
folders; a lone ``1_Pooling/config.json``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from isorun.errors import InvalidModel, UnsupportedModel
from isorun.models import dense, keys, sentence_keys
from isorun.models.dense import ACTIVATIONS as ACTIVATIONS
from isorun.models.dense import Dense as Dense
from isorun.models.keys import (
    FLAG,
    SIZE,
    TEXT,
    TEXTS,
    Table,
    check,
    items,
    optional,
    read_object,
    read_table,
)
from isorun.system.cache import sha256
from isorun.system.paths import inside

METADATA = "isorun.sentences"
"""The metadata property of an ONNX file that keeps the settings of its checkpoint, as JSON."""

POOLINGS = ("mean", "cls", "max", "lasttoken", "weightedmean", "mean_sqrt_len_tokens")
"""How token vectors become one vector, by sentence-transformers' names."""

PROBLEMS = ("regression", "single_label_classification", "multi_label_classification")
"""What classifiers are trained for, by transformers' names."""

MODULE_FILE = re.compile(r"(\d+_\w+)/(config\.json|model\.safetensors)")
"""A file of one of sentence-transformers' modules; ``1_Pooling.config.json`` in the cache, which has no sub-folders."""

NORMALIZE = "normalize"
_DENSE = "dense"
_KINDS = ("Transformer", "Pooling", "Dense", "Normalize")
_MAX_MODULES = 64
_UNLIMITED = 10**9  # transformers writes 1e30 where a tokenizer has no limit
_DEFAULT_POSITIONS = {"modernbert": 8192, "qwen3": 32768, "gemma3_text": 131072, "eurobert": 8192, "nomic_bert": 2048}
_CONFIGS = tuple(  # in the order in which sentence-transformers looks for them
    f"sentence_{kind}_config.json"
    for kind in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
)
_KEPT: Table = {  # in the metadata of an ONNX file
    "pooling": items(str),
    "include_prompt": FLAG,
    "steps": items(str),
    "max_tokens": optional(SIZE),
    "lower_case": FLAG,
    "prompts": TEXTS,
    "default_prompt": optional(TEXT),
    "truncate_dim": optional(SIZE),
    "activation": optional(TEXT),
    "labels": TEXTS,
    "problem_type": optional(TEXT),
    "saved_as": optional(TEXT),
    "dense_activations": items(str),
    "dense_sha256": TEXT,
}


@dataclass(frozen=True)
class SentenceSettings:
    """How a sentence model or a cross-encoder is used.

    Attributes:
        pooling: one or more of :data:`POOLINGS`, whose results are concatenated; empty if unknown.
        include_prompt: whether the tokens of a prompt count in pooling.
        steps: what follows pooling, in order: dense layers and ``"normalize"``.
        max_tokens: the maximum number of tokens of a text, special tokens included; ``None`` for the model's.
        lower_case: whether text is converted to lower case before the tokenizer does what it does.
        prompts: texts to put before a text, by name.
        default_prompt: the name of the prompt to use where none is named.
        truncate_dim: how many leading dimensions of a vector are kept; ``None`` for all.
        activation: what a cross-encoder applies to logits, by its import path; ``None`` for the default.
        labels: the names of a classifier's classes by their number.
        problem_type: what a classifier was trained for, by transformers' name, if known.
        saved_as: the class of sentence-transformers that saved the model, if known.
    """

    pooling: tuple[str, ...] = ()
    include_prompt: bool = True
    steps: tuple[Dense | str, ...] = ()
    max_tokens: int | None = None
    lower_case: bool = False
    prompts: Mapping[str, str] = field(default_factory=dict)
    default_prompt: str | None = None
    truncate_dim: int | None = None
    activation: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    problem_type: str | None = None
    saved_as: str | None = None

    @property
    def layers(self) -> list[Dense]:
        """The dense layers of :attr:`steps`."""
        return [step for step in self.steps if isinstance(step, Dense)]

    def to_json(self) -> str:
        """For an ONNX file's metadata, without the weights of dense layers (:meth:`dense_file`)."""
        steps = [step if isinstance(step, str) else _DENSE for step in self.steps]
        fields = {**asdict(replace(self, steps=())), "steps": steps}
        if layers := self.layers:
            fields |= {"dense_activations": [layer.activation for layer in layers]}
            fields |= {"dense_sha256": sha256(dense.pack(layers))}
        return json.dumps(fields)

    def save_dense(self, model: Path) -> None:
        """Write the dense layers, if any, beside an ONNX file."""
        if layers := self.layers:
            _dense_file(model).write_bytes(dense.pack(layers))

    @classmethod
    def from_json(cls, text: str, model: Path | None = None) -> SentenceSettings:
        """The inverse of :meth:`to_json`.

        Args:
            text: the metadata.
            model: the ONNX file, whose dense layers are read from the file beside it; ``None`` to leave the word
                ``"dense"`` in place of each.

        Raises:
            InvalidModel: the metadata or the file beside it is damaged.
        """
        name = f"The metadata {METADATA} of {model or 'the model'}"
        fields = dict(check(keys.parse(text, name), _KEPT, name))
        digest, activations = fields.pop("dense_sha256", None), fields.pop("dense_activations", [])
        steps: list[Dense | str] = list(fields.pop("steps", ()))
        wrong = [step for step in steps if step not in (NORMALIZE, _DENSE)]
        wrong += [mode for mode in fields.get("pooling", ()) if mode not in POOLINGS]
        wrong += [activation for activation in activations if activation not in ACTIVATIONS]
        if wrong or (digest is not None and steps.count(_DENSE) != len(activations)):
            raise InvalidModel(f"{name} is damaged. Build the file again: isorun build")
        if model is not None and digest is not None:
            layers = iter(dense.unpack(_dense_file(model), digest, activations))
            steps = [next(layers) if step == _DENSE else step for step in steps]
        fields |= {key: tuple(fields[key]) for key in ("pooling",) if key in fields}
        return cls(**{**fields, "steps": tuple(steps)})


def read(folder: Path) -> SentenceSettings:
    """The settings in a checkpoint's folder.

    Raises:
        InvalidModel: a file is damaged, or a path leads out of the folder.
        UnsupportedModel: a module, pooling, activation or key that isorun does not have.
    """
    inner = transformer_folder(folder)
    settings: dict[str, Any] = {"max_tokens": token_limit(inner)}
    modules = _modules(folder)
    pooling = _module_file(folder, "1_Pooling", "config.json")
    if modules:
        settings |= _limits(inner)
        for index, (kind, path) in enumerate(modules):
            if (index == 0) != (kind == "Transformer") or (kind == "Pooling") != (index == 1):
                raise UnsupportedModel(
                    f"{folder / 'modules.json'}: module {index} is {kind}. Supported: Transformer, then Pooling, then "
                    "any number of Dense and Normalize"
                )
            if kind == "Pooling":
                settings |= _pooling(_module_file(folder, path, "config.json"))
            elif kind == "Dense":
                files = (_module_file(folder, path, name) for name in ("config.json", "model.safetensors"))
                settings["steps"] = (*settings.get("steps", ()), dense.read_layer(*files))
            elif kind == "Normalize":
                if (config := _module_file(folder, path, "config.json")).is_file():
                    read_table(config, sentence_keys.NORMALIZE)
                settings["steps"] = (*settings.get("steps", ()), NORMALIZE)
    elif pooling.is_file():
        settings |= {**_limits(folder), **_pooling(pooling)}
    settings |= _classifier(inner)
    if modules or pooling.is_file():  # sentence-transformers reads no file of its own without modules.json
        settings |= _model(folder)
    return SentenceSettings(**settings)


def files(folder: Path) -> list[str]:
    """The files that :func:`read` may read, relative to the folder, apart from dense layers' weights."""
    names = ("modules.json", "tokenizer_config.json", "config_sentence_transformers.json", "sentence_*_config.json")
    patterns = (*names, "*_*/config.json", "*_*.config.json")
    return sorted(path.relative_to(folder).as_posix() for pattern in patterns for path in folder.glob(pattern))


def transformer_folder(folder: Path) -> Path:
    """The folder of the transformer in a sentence model's folder: the folder itself, or that of its first module."""
    for kind, path in _modules(folder)[:1]:
        if kind == "Transformer":
            return inside(folder, path)
    return folder


def token_limit(folder: Path) -> int | None:
    """The maximum number of tokens that the tokenizer's and the model's own configurations state; ``None`` if neither
    does. The latter also holds for models without a table of positions, as in sentence-transformers."""
    limits = (
        _object(folder, "tokenizer_config.json").get("model_max_length"),
        _positions(_object(folder, "config.json")),
    )
    counts = [int(limit) for limit in limits if isinstance(limit, int | float) and 1 <= limit < _UNLIMITED]
    return min(counts, default=None)


def _positions(config: Mapping[str, Any]) -> object:
    """The number of positions of a model."""
    kind = config.get("model_type")
    default = _DEFAULT_POSITIONS.get(kind) if isinstance(kind, str) else None
    if kind == "nomic_bert":  # as its authors publish it
        default = config.get("n_positions", default)
    return config.get("max_position_embeddings", default)


def _object(folder: Path, name: str) -> Mapping[str, Any]:
    path = inside(folder, name)
    return read_object(path) if path.is_file() else {}


def _modules(folder: Path) -> list[tuple[str, str]]:
    """The kinds and paths of the modules; empty without ``modules.json``."""
    path = inside(folder, "modules.json")
    if not path.is_file():
        return []
    listed = keys.read(path)
    if not isinstance(listed, list) or not 0 < len(listed) <= _MAX_MODULES:
        raise InvalidModel(f"{path} must be a list of 1 to {_MAX_MODULES} objects")
    modules = []
    for module in listed:
        if not isinstance(module, dict) or "type" not in module:
            raise InvalidModel(f"{path} must be a list of objects with a type")
        check(module, sentence_keys.MODULE, str(path))
        package, _, kind = module["type"].rpartition(".")
        if kind not in _KINDS or package.partition(".")[0] not in ("sentence_transformers", ""):
            raise UnsupportedModel(
                f"{path} has a module of type {kind} ({module['type']}). Supported: {', '.join(_KINDS)}"
            )
        modules.append((kind, module.get("path", "")))
        inside(folder, modules[-1][1])
    return modules


def _limits(folder: Path) -> dict[str, Any]:
    for name in _CONFIGS:
        path = inside(folder, name)
        if path.is_file() and (fields := read_table(path, sentence_keys.TRANSFORMER)):
            limit = fields.get("max_seq_length") or token_limit(folder)
            return {"max_tokens": limit, "lower_case": bool(fields.get("do_lower_case"))}
    return {}


def _model(folder: Path) -> dict[str, Any]:
    path = inside(folder, "config_sentence_transformers.json")
    if not path.is_file():
        return {}
    fields = read_table(path, sentence_keys.MODEL)
    own = {"prompts": fields.get("prompts") or {}, "default_prompt": fields.get("default_prompt_name")}
    own |= {"truncate_dim": fields.get("truncate_dim"), "saved_as": fields.get("model_type")}
    return {**own, "activation": fields["activation_fn"]} if fields.get("activation_fn") else own


def _classifier(folder: Path) -> dict[str, Any]:
    """What ``config.json`` states of a classifier: its activation, the names of its classes and its problem."""
    path, fields = folder / "config.json", _object(folder, "config.json")
    labels, kept = fields.get("id2label") or {}, fields.get("sentence_transformers") or {}
    if not isinstance(labels, dict) or not isinstance(kept, dict):
        raise InvalidModel(f"{path}: id2label and sentence_transformers must be objects, got {labels!r} and {kept!r}")
    activation = kept.get("activation_fn") or fields.get("sbert_ce_default_activation_function")
    if activation is not None and not isinstance(activation, str):
        raise InvalidModel(f"{path}: the activation must be a string, got {activation!r}")
    problem = fields.get("problem_type")
    if problem not in (None, *PROBLEMS):
        raise InvalidModel(f"{path}: problem_type must be one of {', '.join(PROBLEMS)}, got {problem!r}")
    names = {key: str(value) for key, value in labels.items()}
    return {"activation": activation, "labels": names, "problem_type": problem}


def _pooling(path: Path) -> dict[str, Any]:
    fields = read_table(path, sentence_keys.POOLING)
    modes = fields.get(
        "pooling_mode", [mode for key, mode in sentence_keys.OLD_POOLINGS.items() if fields.get(key)] or "mean"
    )
    modes = (modes,) if isinstance(modes, str) else tuple(modes)
    if unknown := [mode for mode in modes if mode not in POOLINGS]:
        raise UnsupportedModel(f"{path} has the pooling {unknown[0]!r}. Supported: {', '.join(POOLINGS)}")
    return {"pooling": modes, "include_prompt": fields.get("include_prompt", True)}


def _module_file(folder: Path, module: str, name: str) -> Path:
    flat = inside(folder, f"{module}.{name}")
    return flat if flat.is_file() else inside(folder, f"{module}/{name}" if module else name)


def _dense_file(model: Path) -> Path:
    return model.with_name(f"{model.stem}.{dense.FILE}")
