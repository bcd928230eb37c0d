"""What sentence-transformers saves beside a model: how token vectors become one vector, prompts, limits, activations.

Three sources, in this order: the metadata of an ONNX file that ``isorun build`` wrote; ``modules.json`` and its
folders; a lone ``1_Pooling/config.json``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from isorun.errors import InvalidModel, UnsupportedModel
from isorun.models import dense, keys, late_interaction, modules, sentence_keys
from isorun.models.dense import Dense as Dense
from isorun.models.dense import Layer as Layer
from isorun.models.dense import WordWeights as WordWeights
from isorun.models.keys import (
    FLAG,
    OBJECT,
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
from isorun.models.late_interaction import LateInteraction
from isorun.models.modules import Module
from isorun.system.cache import sha256
from isorun.system.paths import inside

_STEPS = ("token_steps", "steps")  # the fields with layers, in this order in the file beside an ONNX file
METADATA = "isorun.sentences"
"""The metadata property of an ONNX file that keeps the settings of its checkpoint, as JSON."""

POOLINGS = ("mean", "cls", "max", "lasttoken", "weightedmean", "mean_sqrt_len_tokens")
"""How token vectors become one vector, by sentence-transformers' names."""

PROBLEMS = ("regression", "single_label_classification", "multi_label_classification")
"""What classifiers are trained for, by transformers' names."""

NORMALIZE = "normalize"
_LAYER = "dense"
_MEANS = ("mean", "mean_sqrt_len_tokens")
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
    "token_steps": items(str),
    "static": FLAG,
    "splade": optional(items(str)),
    "max_active_dims": optional(SIZE),
    "max_tokens": optional(SIZE),
    "lower_case": FLAG,
    "prompts": TEXTS,
    "default_prompt": optional(TEXT),
    "truncate_dim": optional(SIZE),
    "activation": optional(TEXT),
    "labels": TEXTS,
    "problem_type": optional(TEXT),
    "saved_as": optional(TEXT),
    "late_interaction": optional(OBJECT),
    "dense_activations": items(str),
    "dense_sha256": TEXT,
}


@dataclass(frozen=True)
class SentenceSettings:
    """How a sentence model or a cross-encoder is used.

    Attributes:
        pooling: one or more of :data:`POOLINGS`, whose results are concatenated; empty if unknown.
        include_prompt: whether the tokens of a prompt count in pooling.
        steps: what follows pooling, in order: layers and ``"normalize"``.
        token_steps: likewise, what precedes pooling.
        static: whether a table of words is read in place of a transformer.
        splade: how the logits of words become a sparse vector: ``max`` or ``sum``, and ``relu`` or ``log1p_relu``.
        max_active_dims: the maximum number of values other than 0 of a sparse vector.
        max_tokens: the maximum number of tokens of a text, special tokens included; ``None`` for the model's.
        lower_case: whether text is converted to lower case before the tokenizer does what it does.
        prompts: texts to put before a text, by name.
        default_prompt: the name of the prompt to use where none is named.
        truncate_dim: how many leading dimensions of a vector are kept; ``None`` for all.
        activation: what a cross-encoder applies to logits, by its import path; ``None`` for the default.
        labels: the names of a classifier's classes by their number.
        problem_type: what a classifier was trained for, by transformers' name, if known.
        saved_as: the class of sentence-transformers that saved the model, if known.
        late_interaction: how queries and documents are read by a model with a vector for each token; ``None`` if it
            was not trained for that.
    """

    pooling: tuple[str, ...] = ()
    include_prompt: bool = True
    steps: tuple[Layer | str, ...] = ()
    token_steps: tuple[Layer | str, ...] = ()
    static: bool = False
    splade: tuple[str, str] | None = None
    max_active_dims: int | None = None
    max_tokens: int | None = None
    lower_case: bool = False
    prompts: Mapping[str, str] = field(default_factory=dict)
    default_prompt: str | None = None
    truncate_dim: int | None = None
    activation: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    problem_type: str | None = None
    saved_as: str | None = None
    late_interaction: LateInteraction | None = None

    @property
    def layers(self) -> list[Layer]:
        """The layers of :attr:`token_steps` and :attr:`steps`."""
        return [step for step in (*self.token_steps, *self.steps) if not isinstance(step, str)]

    def to_json(self) -> str:
        """For an ONNX file's metadata, without the weights of layers (:meth:`dense_file`)."""
        fields = asdict(replace(self, steps=(), token_steps=()))
        for key in _STEPS:
            fields[key] = [step if isinstance(step, str) else _LAYER for step in getattr(self, key)]
        if layers := self.layers:
            fields |= {"dense_activations": [layer.kind for layer in layers]}
            fields |= {"dense_sha256": sha256(dense.pack(layers))}
        return json.dumps(fields)

    def save_dense(self, model: Path) -> None:
        """Write the layers, if any, beside an ONNX file."""
        if layers := self.layers:
            _dense_file(model).write_bytes(dense.pack(layers))

    @classmethod
    def from_json(cls, text: str, model: Path | None = None) -> SentenceSettings:
        """The inverse of :meth:`to_json`.

        Args:
            text: the metadata.
            model: the ONNX file, whose layers are read from the file beside it; ``None`` to leave the word
                ``"dense"`` in place of each.

        Raises:
            InvalidModel: the metadata or the file beside it is damaged.
        """
        name = f"The metadata {METADATA} of {model or 'the model'}"
        fields = dict(check(keys.parse(text, name), _KEPT, name))
        digest, kinds = fields.pop("dense_sha256", None), fields.pop("dense_activations", [])
        steps: dict[str, list[Layer | str]] = {key: list(fields.pop(key, ())) for key in _STEPS}
        listed = [step for named in steps.values() for step in named]
        wrong = [step for step in listed if step not in (NORMALIZE, _LAYER)]
        wrong += [mode for mode in fields.get("pooling", ()) if mode not in POOLINGS]
        wrong += [kind for kind in kinds if not dense.is_kind(kind)]
        splade = fields.get("splade")
        invalid = splade is not None and (len(splade) != 2 or not {*splade} <= {"max", "sum", "relu", "log1p_relu"})
        if wrong or invalid or (digest is not None and listed.count(_LAYER) != len(kinds)):
            raise InvalidModel(f"{name} is damaged. Build the file again: isorun build")
        if model is not None and digest is not None:
            layers = iter(dense.unpack(_dense_file(model), digest, kinds))
            steps = {key: [next(layers) if step == _LAYER else step for step in named] for key, named in steps.items()}
        fields |= {key: tuple(fields[key]) for key in ("pooling", "splade") if fields.get(key) is not None}
        fields |= {key: tuple(named) for key, named in steps.items()}
        late = fields.pop("late_interaction", None)
        return cls(**fields, late_interaction=LateInteraction.from_dict(late, name) if late else None)


def read(folder: Path, route: str | None = None) -> SentenceSettings:
    """The settings in a checkpoint's folder.

    Args:
        folder: the checkpoint.
        route: the route of a model with a router; ``None`` for the default one.

    Raises:
        InvalidModel: a file is damaged, or a path leads out of the folder.
        UnsupportedModel: a module, pooling, activation or key that isorun does not have.
    """
    inner = transformer_folder(folder, route)
    settings: dict[str, Any] = {"max_tokens": token_limit(inner)}
    listed = modules.read(folder).of(route)
    pooling = _module_file(folder, "1_Pooling", "config.json")
    if listed:
        settings |= _of_modules(folder, listed)
    elif pooling.is_file():
        settings |= {**_limits(folder), **_pooling(pooling)}
    elif _object(folder, "config.json").get("architectures") == [late_interaction.STANFORD]:
        settings |= _stanford(folder)
    settings |= _classifier(inner)
    if listed or pooling.is_file():  # sentence-transformers reads no file of its own without modules.json
        settings |= _model(folder)
    return SentenceSettings(**settings)


def _stanford(folder: Path) -> dict[str, Any]:
    """The settings of a model that Stanford's ColBERT saved."""
    path = inside(folder, late_interaction.METADATA)
    metadata = keys.check_known(read_object(path), sentence_keys.STANFORD, str(path)) if path.is_file() else {}
    late, prompts = late_interaction.stanford(metadata)
    steps = (dense.read_projection(folder, late_interaction.PROJECTION), NORMALIZE)
    return {"late_interaction": late, "prompts": prompts, "token_steps": steps}


def _of_modules(folder: Path, listed: Sequence[Module]) -> dict[str, Any]:
    """The settings that modules have."""
    settings: dict[str, Any] = {"token_steps": (), "steps": ()}
    pooled, task = False, None
    model, reader = _model_fields(folder), inside(folder, listed[0].path)
    masks = [_module_file(folder, path, "config.json") for kind, path in listed if kind == modules.MASK]
    mask = read_table(masks[0], sentence_keys.MULTI_VECTOR_MASK) if masks else None
    late = late_interaction.read(_transformer_fields(reader), mask, model, str(folder))
    settings["late_interaction"] = late
    for index, (kind, path) in enumerate(listed):
        reads_text = kind in (*modules.TRANSFORMERS, modules.STATIC, modules.STATIC_SPARSE)
        pools = kind in ("Pooling", "SpladePooling", modules.STATIC, modules.STATIC_SPARSE)
        if reads_text != (index == 0) or (pools and pooled):
            raise UnsupportedModel(
                f"{folder / modules.FILE}: module {index} is {kind}. Supported: a module that reads text, then at most "
                "one pooling, and layers before and after it"
            )
        pooled |= pools
        config = _module_file(folder, path, "config.json")
        weights = _module_file(folder, path, "model.safetensors")
        step: Layer | str | None = None
        of_tokens = False
        if kind in modules.TRANSFORMERS:
            settings |= _limits(inside(folder, path))
            task = _task(inside(folder, path), kind)
        elif kind == modules.STATIC:
            settings |= {"static": True, "max_tokens": None}
        elif kind == "Pooling":
            settings |= _pooling(config)
        elif kind == "SpladePooling":
            fields = read_table(config, sentence_keys.SPLADE)
            settings["splade"] = (fields.get("pooling_strategy", "max"), fields.get("activation_function", "relu"))
        elif kind == "Dense":
            step, of_tokens = dense.read_layer(config, weights, {"module_input_name": dense.TOKENS} if late else {})
        elif kind == "LayerNorm":
            step = dense.read_norm(config, weights)
        elif kind == "WordWeights":
            step, of_tokens = dense.read_words(config), True
        elif kind == "Normalize":
            fields = read_table(config, sentence_keys.NORMALIZE) if config.is_file() else {}
            read_name = fields.get("module_input_name") or "sentence_embedding"
            if fields.get("module_output_name") not in (None, read_name):
                raise UnsupportedModel(
                    f"{config}: module_output_name must be {read_name!r}, as module_input_name is, or null"
                )
            step, of_tokens = NORMALIZE, read_name == dense.TOKENS
        if step is not None:
            if of_tokens == pooled:
                place = "tokens after" if pooled else "sentences before"
                raise UnsupportedModel(f"{folder / modules.FILE}: module {index}, {kind}, changes {place} the pooling")
            key = "steps" if pooled else "token_steps"
            settings[key] = (*settings[key], step)
    if late is not None:
        if pooled or len(masks) > 1:
            raise UnsupportedModel(f"{folder / modules.FILE}: a multi-vector encoder with a pooling is not supported")
        if not masks:  # PyLate's: the mask and the normalization are not modules
            settings["token_steps"] = (*settings["token_steps"], NORMALIZE)
    if task is not None and ("splade" in settings) != (task == "fill-mask"):
        raise UnsupportedModel(
            f"{folder / modules.FILE}: transformer_task must be 'fill-mask' with SpladePooling, and only with it, "
            f"got {task!r}"
        )
    weighted = any(isinstance(step, WordWeights) for step in settings["token_steps"])
    if weighted and (others := [mode for mode in settings.get("pooling", ()) if mode not in _MEANS]):
        raise UnsupportedModel(
            f"{folder / modules.FILE}: WordWeights with the pooling {others[0]!r} is not supported, only with "
            f"{' and '.join(_MEANS)}"
        )
    return settings


def files(folder: Path) -> list[str]:
    """The files that :func:`read` may read, relative to the folder, apart from layers' weights."""
    names = ("modules.json", "router_config.json", "tokenizer_config.json", "config_sentence_transformers.json")
    patterns = (*names, late_interaction.METADATA, "sentence_*_config.json", "*_*/config.json", "*_*/*_*/config.json")
    return sorted(path.relative_to(folder).as_posix() for pattern in patterns for path in folder.glob(pattern))


def transformer_folder(folder: Path, route: str | None = None) -> Path:
    """The folder of the module that reads text: a sentence model's folder itself, or that of its first module."""
    for module in modules.read(folder).of(route)[:1]:
        return inside(folder, module.path)
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


def _transformer_fields(folder: Path) -> Mapping[str, Any]:
    """The settings of the module that reads text."""
    paths = (inside(folder, name) for name in _CONFIGS)
    return next(filter(None, (read_table(path, sentence_keys.TRANSFORMER) for path in paths if path.is_file())), {})


def _limits(folder: Path) -> dict[str, Any]:
    if not (fields := _transformer_fields(folder)):
        return {}
    limit = fields.get("max_seq_length") or token_limit(folder)
    return {"max_tokens": limit, "lower_case": bool(fields.get("do_lower_case"))}


def _task(folder: Path, kind: str) -> str:
    """What the transformer computes, by sentence-transformers' name."""
    default = "fill-mask" if kind == "MLMTransformer" else "feature-extraction"
    return str(_transformer_fields(folder).get("transformer_task") or default)


def _model_fields(folder: Path) -> Mapping[str, Any]:
    path = inside(folder, "config_sentence_transformers.json")
    return read_table(path, sentence_keys.MODEL) if path.is_file() else {}


def _model(folder: Path) -> dict[str, Any]:
    if not (fields := _model_fields(folder)):
        return {}
    own = {"prompts": late_interaction.prompts(fields), "default_prompt": fields.get("default_prompt_name")}
    own |= {"truncate_dim": fields.get("truncate_dim"), "saved_as": fields.get("model_type")}
    own |= {"max_active_dims": fields.get("max_active_dims")}
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
    return inside(folder, f"{module}/{name}" if module else name)


def _dense_file(model: Path) -> Path:
    return model.with_name(f"{model.stem}.{dense.FILE}")
