"""What sentence-transformers saves beside a model: how token vectors become one vector, prompts, limits, activations.

Two sources, in this order: ``modules.json`` and its folders; a lone ``1_Pooling/config.json``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from isorun.errors import InvalidModel, UnsupportedModel
from isorun.models import dense, keys, late_interaction, modules, sentence_keys
from isorun.models.dense import Layer, WordWeights
from isorun.models.keys import check, read_object, read_table
from isorun.models.modules import Module
from isorun.models.sentence_settings import NORMALIZE, POOLINGS, PROBLEMS, SentenceSettings
from isorun.system.paths import inside

_TASKS = (("fill-mask", "splade", "SpladePooling"), ("text-generation", "logit_score", modules.SCORE))
MEANS = ("mean", "mean_sqrt_len_tokens")
"""The poolings that weights of words are supported with."""
_UNLIMITED = 10**9  # transformers writes 1e30 where a tokenizer has no limit
_DEFAULT_POSITIONS = {
    **{"modernbert": 8192, "qwen3": 32768, "gemma3_text": 131072, "eurobert": 8192, "nomic_bert": 2048},
    **{"qwen2": 32768, "llama": 2048, "mistral": 131072},
}
_CONFIGS = tuple(  # in the order in which sentence-transformers looks for them
    f"sentence_{kind}_config.json"
    for kind in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
)


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
        elif kind == modules.SCORE:
            fields = read_table(config, sentence_keys.LOGIT_SCORE)
            if "true_token_id" not in fields:
                raise InvalidModel(f"{config} must have true_token_id")
            settings["logit_score"] = (fields["true_token_id"], fields.get("false_token_id"))
        elif kind == "LayerNorm":
            step = dense.read_norm(config, weights)
        elif kind == "Dropout" and config.is_file():
            read_table(config, sentence_keys.DROPOUT)
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
    for needed, key, kind in _TASKS:
        if task is not None and (key in settings) != (task == needed):
            raise UnsupportedModel(
                f"{folder / modules.FILE}: transformer_task must be {needed!r} with {kind}, and only with it, "
                f"got {task!r}"
            )
    settings["chat_template"] = _chat(reader, chats="logit_score" in settings)
    _check_word_weights(settings, folder / modules.FILE)
    return settings


def _check_word_weights(settings: Mapping[str, Any], path: Path) -> None:
    """Reject weights of words that are not simply those of a mean."""
    steps = settings["token_steps"]
    if not any(isinstance(step, WordWeights) for step in steps):
        return
    if others := [mode for mode in settings.get("pooling", ()) if mode not in MEANS]:
        raise UnsupportedModel(
            f"{path}: WordWeights with the pooling {others[0]!r} is not supported, only with {' and '.join(MEANS)}"
        )
    if any(isinstance(step, WordWeights) for step in steps[:-1]):
        raise UnsupportedModel(f"{path}: WordWeights is supported as the last module before the pooling only")
    if not settings.get("include_prompt", True):
        raise UnsupportedModel(f"{path}: WordWeights with include_prompt: false is not supported")


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
    fields = _object(folder, "tokenizer_config.json")
    limits = (fields.get("model_max_length", fields.get("max_len")), _positions(_object(folder, "config.json")))
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


def _chat(folder: Path, *, chats: bool) -> Mapping[str, Any]:
    """The arguments of the chat template, which a causal reranker reads, and no other model."""
    fields = _transformer_fields(folder)
    template = (fields.get("processing_kwargs") or {}).get("chat_template") or {}
    has_messages = "message" in (fields.get("modality_config") or {})
    if not chats and (template or has_messages):
        raise UnsupportedModel(f"{folder}: a chat template is supported with a LogitScore module only")
    if chats and not has_messages:  # sentence-transformers would join the texts of a pair
        raise UnsupportedModel(
            f"{folder}: a LogitScore module is supported with a chat template only, and modality_config in "
            f"{_CONFIGS[0]} has no 'message', so that sentence-transformers would read pairs without one. Save the "
            "model again with the template"
        )
    return check(template, sentence_keys.CHAT_TEMPLATE, f"{folder}: chat_template")


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
