"""Building graphs from Hugging Face checkpoints (``config.json`` and ``model.safetensors``), without PyTorch."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from isorun.errors import InvalidModel, UnsupportedModel
from isorun.graph.tasks import SEQUENCE, WORDS
from isorun.models import (
    config_keys,
    encoder_settings,
    heads,
    keys,
    modules,
    sentence_settings,
    sentences,
    vocabulary_files,
)
from isorun.models.keys import read_object
from isorun.models.sentence_settings import SentenceSettings
from isorun.models.static_table import StaticTable
from isorun.models.weights import SafeTensors, Unused, weight_files
from isorun.system.cache import Cache, is_private, sha256, versioned
from isorun.system.caller_warnings import warn
from isorun.system.paths import inside

if TYPE_CHECKING:
    import onnx_ir as ir

    from isorun.graph.builders.architecture import Head

CAUSAL = ("qwen3", "qwen2", "llama", "mistral")
"""The values of ``model_type`` of causal models that may be rerankers, the first one without ``modules.json`` too."""

OMITTED = "isorun.omitted"
"""The metadata property of an ONNX file with the tensors of its checkpoint that its graph omits, as JSON."""

_ENTRY_MODEL = "model.onnx"
TOKENIZER_FILES = (
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "chat_template.jinja"),
    "config.json",  # the type of the model decides the tokenizer's class
)
VOCABULARIES = (vocabulary_files.WORD_PIECES, vocabulary_files.BYTE_PAIRS, vocabulary_files.MERGES)
_OMITTED = {field.name: keys.items(str) for field in fields(Unused)}

_ROUNDED = {"float16": "F16", "bfloat16": "BF16"}
"""Types of a model that lose digits of float32, and their names in safetensors files."""


class CheckpointWarning(UserWarning):
    """A checkpoint contains layers that its config does not count, or a head that its graph does not."""


def build(folder: Path, output: Path) -> list[str]:
    """Write the fused graph of a checkpoint, and what is read from its folder.

    The tokenizer is written to ``<stem>.tokenizer.json``, the files that change it to ``<stem>.tokenizer_config.json``
    and so on, dense layers after pooling to ``<stem>.dense.safetensors``. The metadata of the ONNX file has the rest.

    Args:
        folder: the checkpoint, with ``config.json`` and ``model.safetensors`` (or the shards in
            ``model.safetensors.index.json``).
        output: the ONNX file. Weights above 2 GiB are written to ``<stem>.weights.bin`` beside it.

    Returns:
        The names of the checkpoint's tensors that the graph does not use, such as a pretraining head.

    Raises:
        InvalidModel: the architecture is not supported, or the tensors do not match the config.
    """
    from isorun.graph.io import files

    if len(routes := modules.read(folder).routes) > 1:
        raise UnsupportedModel(
            f"{folder} has routes, each with a graph of its own: {', '.join(map(str, routes))}. Open the folder itself"
        )
    left_out = _build(folder, output, files.write)
    return sorted(left_out.heads + left_out.layers)


def _build(
    folder: Path,
    output: Path,
    write: Callable[[ir.Model, Path], None],
    route: str | None = None,
    logit_score: tuple[int, int | None] | None = None,
) -> Unused:
    outer, folder = folder, sentences.transformer_folder(folder, route)
    kept = sentences.read(outer, route)
    if logit_score is not None:
        kept = replace(kept, logit_score=logit_score)
    if kept.static:
        model, left_out = _static(folder)
    else:
        _check_adapters(folder)
        settings = config_keys.read(folder)
        if kept.logit_score is not None and settings.get("model_type") not in CAUSAL:
            raise UnsupportedModel(
                f"{folder / 'config.json'}: model_type of a causal reranker must be {' or '.join(CAUSAL)}, "
                f"got {settings.get('model_type')!r}"
            )
        model, left_out = _encoder(folder, settings, kept)
    model.metadata_props[sentence_settings.METADATA] = kept.to_json()
    if omitted := {name: tensors for name, tensors in asdict(left_out).items() if tensors}:
        model.metadata_props[OMITTED] = json.dumps(omitted)
    write(model, output)
    kept.save_dense(output)
    for name in _tokenizer_files(folder):
        if (folder / name).is_file():
            shutil.copyfile(inside(folder, name), output.with_name(f"{output.stem}.{name}"))
    return left_out


def _static(folder: Path) -> tuple[ir.Model, Unused]:
    """The graph of a table of words."""
    from isorun.graph.builders import static

    weights = StaticTable(folder)
    return static.mean_of_words(weights, weights.shape), Unused([], [])


def _encoder(folder: Path, settings: Mapping[str, Any], kept: SentenceSettings) -> tuple[ir.Model, Unused]:
    from isorun.graph.builders import encoder

    def invalid(why: str) -> InvalidModel:
        return InvalidModel(f"{path}: {why}")

    path = folder / "config.json"
    kind = encoder_settings.kind_of(settings, invalid)
    settings = config_keys.check_config(settings, kind, str(path))
    config = encoder_settings.read(kind, settings, invalid)
    architecture = config.architecture
    prefix = architecture.prefixes.get(heads.named(settings, invalid) or "", architecture.prefix)
    weights = _weights(folder, settings, prefix)
    settings = {architecture.activation[0]: config.hidden_act, **settings}  # heads read it too
    task, head = heads.of(settings, architecture.heads, weights, invalid, config.embedding_size)
    labels = heads.labels(settings, task, config.vocab_size, invalid)
    if kept.logit_score is not None:
        task, labels = SEQUENCE, 1
        head = heads.of_words(settings, kept.logit_score, config.vocab_size, weights, invalid)
    if "max_position_embeddings" in architecture.sizes and not architecture.has_positions(settings):
        weights.account("embeddings.position_embeddings.weight")  # DeBERTa-v3 stores it and does not read it
    pooler = architecture.pooler is not None and f"{architecture.pooler}.weight" in weights
    if head is not None and head.reads == "pooler" and not pooler:
        raise invalid("the sequence classifier needs a pooler, which the checkpoint does not contain")
    words = weights.preferred(*(f"{table}.weight" for table in architecture.words)).removesuffix(".weight")
    head = _with_splade(folder, head, kept.splade)
    config = replace(config, pooler=pooler, task=task, head=head, labels=labels, words=words)
    return encoder.encoder(config, weights), weights.unused(config.num_hidden_layers)


def _with_splade(folder: Path, head: Head | None, splade: tuple[str, str] | None) -> Head | None:
    """A head whose logits become one vector for each text, where the modules say so."""
    if splade is None:
        return head
    heads.check_task(folder, WORDS, "SpladePooling needs the scores of words")
    assert head is not None, "heads.of() makes it where check_task() accepts it"
    return replace(head, splade=splade)


def _weights(folder: Path, settings: Mapping[str, Any], prefix: str) -> SafeTensors:
    """The tensors, which transformers would round to the type that ``config.json`` states."""
    weights = SafeTensors(folder, prefix)
    stated = str(settings.get("dtype") or settings.get("torch_dtype")).removeprefix("torch.")
    if stated in _ROUNDED and not weights.stores(_ROUNDED[stated]):
        raise UnsupportedModel(
            f"{folder / 'config.json'}: dtype is {stated!r}, but no weight is stored in it, and isorun does not round "
            "weights. Set dtype to 'float32', or save the model in the type that it is used in"
        )
    return weights


def _check_adapters(folder: Path) -> None:
    """Reject weights that are not the model's own: transformers loads an adapter that lies beside them."""
    path = folder / "adapter_config.json"
    if path.is_file():
        kind = read_object(inside(folder, path.name)).get("peft_type")
        raise UnsupportedModel(
            f"{path} describes an adapter (peft_type {kind!r}), which isorun does not apply. Merge it into the weights "
            "with merge_and_unload() of peft and save the model, or remove its files"
        )


def causal_kind(folder: Path) -> str | None:
    """The ``model_type`` of a causal language model; ``None`` for other models."""
    settings = config_keys.read(folder)
    names = settings.get("architectures")
    return settings.get("model_type") if isinstance(names, list) and str(names[:1]).endswith("ForCausalLM']") else None


def build_cached(
    folder: Path,
    cache: Cache,
    *,
    whole: bool = True,
    route: str | None = None,
    logit_score: tuple[int, int | None] | None = None,
) -> Path:
    """The fused graph of a checkpoint, from the cache if it was built before.

    Args:
        folder: the checkpoint.
        cache: where the graph is kept.
        whole: whether all outputs of the checkpoint are requested, so that a missing head matters.
        route: the route of a model with a router; ``None`` for the default one.
        logit_score: the words of a causal reranker whose modules name none.

    Warns:
        CheckpointWarning: the checkpoint has more layers than ``config.json``, or a head that is not supported; they
            are omitted.
    """
    inner = sentences.transformer_folder(folder, route)
    if not (inner / "config.json").is_file() and not sentences.read(folder, route).static:
        raise InvalidModel(
            f"{inner} is a folder without a config.json. Pass an ONNX file or the folder of a checkpoint"
        )
    _check_adapters(inner)

    def make(output_folder: Path) -> dict[str, Any]:
        from isorun.graph.io import shared

        return asdict(_build(folder, output_folder / _ENTRY_MODEL, shared.write, route, logit_score))

    paths = files_of(folder, route)
    # With names, so that adding a file changes the key as well as editing one.
    prints = [[str(path.relative_to(folder)), cache.fingerprint([path].copy, path)] for path in paths]
    key = versioned(sha256(json.dumps([prints, *filter(None, [route, logit_score])]).encode())[:40], "builders")
    entry = cache.get_or_make("built", key, make, private=is_private(paths), part=_ENTRY_MODEL)
    if layers := entry.meta["layers"]:
        warn(
            f"{folder} has {len(layers)} tensors of layers that its config.json does not count (the first is "
            f"{layers[0]!r}); they are omitted",
            CheckpointWarning,
        )
    if whole and (heads := entry.meta["heads"]):
        warn(
            f"{folder} has {len(heads)} tensors of a head that isorun does not build (the first is {heads[0]!r}); its "
            "outputs are omitted. Pass outputs=['last_hidden_state'] if the hidden states are what you need",
            CheckpointWarning,
        )
    return entry.folder / _ENTRY_MODEL


def omitted(metadata: Mapping[str, str]) -> Mapping[str, Any]:
    """The tensors that an ONNX file built by isorun omits, for provenance: ``heads`` and ``layers``, if there are any.

    Raises:
        InvalidModel: the metadata is damaged.
    """
    text = metadata.get(OMITTED)
    return {} if text is None else keys.check(keys.parse(text, f"The metadata {OMITTED}"), _OMITTED, OMITTED)


def files_of(folder: Path, route: str | None = None) -> list[Path]:
    """The files of a checkpoint that its graph and tokenizer are made from."""
    inner = sentences.transformer_folder(folder, route)
    own = (inner / name for name in ("config.json", *_tokenizer_files(inner)))
    settings = (place / name for place in (folder, inner) for name in sentences.files(place))
    paths = dict.fromkeys([*own, *settings])
    return [*(path for path in paths if path.is_file()), *weight_files(inner)]


def _tokenizer_files(folder: Path) -> tuple[str, ...]:
    """The names that files of a tokenizer have; vocabularies are read where there is no ``tokenizer.json``."""
    return TOKENIZER_FILES if (folder / TOKENIZER_FILES[0]).is_file() else (*TOKENIZER_FILES, *VOCABULARIES)
