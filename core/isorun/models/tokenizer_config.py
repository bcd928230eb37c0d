"""``tokenizer_config.json`` and ``special_tokens_map.json``: what transformers 5 makes of a ``tokenizer.json``.

transformers takes the vocabulary from ``tokenizer.json`` and, for most classes, builds the rest again from the class
and these settings. :mod:`isorun.models.tokenizer_classes` does the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from isorun.errors import UnsupportedModel
from isorun.models.keys import FLAG, TEXT, Key, Table, check_known, integer, items, optional, read_object, unused
from isorun.models.tokenizer_names import GENERIC, MISDECLARED, PADS_LEFT, REGISTERED, SLOW, TYPED, is_known, resolve

FILE = "tokenizer_config.json"
SPECIAL_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_UNLIMITED = 10**9  # transformers writes 1e30 where a tokenizer has no limit

_FLAG = optional(FLAG)
_FOR_BPE = "clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output"
_SIDE = Key(lambda value: value in ("left", "right"), "'left' or 'right'")
_LIMIT = optional(Key(lambda value: type(value) in (int, float) and value >= 1, "a positive number"))
_TOKEN = optional(
    Key(
        lambda value: isinstance(value, str) or (isinstance(value, dict) and isinstance(value.get("content"), str)),
        "a token",
    )
)

USED: Table = {
    "tokenizer_class": optional(TEXT),
    **dict.fromkeys(("do_lower_case", "strip_accents", "tokenize_chinese_chars", "add_prefix_space"), _FLAG),
    "trim_offsets": _FLAG,
    "truncation_side": _SIDE,
    "padding_side": _SIDE,
    "model_input_names": items(str),
    "model_max_length": _LIMIT,
    "max_len": _LIMIT,
    "split_special_tokens": FLAG,
    "clean_up_tokenization_spaces": _FLAG,
    _FOR_BPE: _FLAG,
    "extra_ids": integer(0, 10_000),
    "unk_id": integer(0, 2**31 - 1),
    "added_tokens_decoder": Key(lambda value: isinstance(value, dict), "an object"),
    **dict.fromkeys(SPECIAL_TOKENS, _TOKEN),
    **unused("auto_map additional_special_tokens extra_special_tokens"),
}
"""The keys that change what a tokenizer does, and their values."""


@dataclass(frozen=True)
class TokenizerSettings:
    """What the files beside ``tokenizer.json`` state.

    Attributes:
        path: ``tokenizer_config.json``, whether it exists or not.
        kind: the class, without ``Fast``; ``None`` if nothing states one: ``tokenizer.json`` is used as it is.
        fields: ``tokenizer_config.json``.
        special_tokens_map: ``special_tokens_map.json``; empty where it has no effect.
        added_tokens: ``added_tokens.json``, likewise.
        config: ``config.json``.
        sides: what ``tokenizer.json`` itself states of ``truncation_side`` and ``padding_side``.
    """

    path: Path
    kind: str | None = None
    fields: Mapping[str, Any] = field(default_factory=dict)
    special_tokens_map: Mapping[str, Any] = field(default_factory=dict)
    added_tokens: Mapping[str, Any] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)
    sides: Mapping[str, str] = field(default_factory=dict)

    def completed(self, document: Mapping[str, Any], pad_id: int) -> TokenizerSettings:
        """With the sides that ``tokenizer.json`` states, which count where ``tokenizer_config.json`` states none.

        Args:
            document: the content of ``tokenizer.json``.
            pad_id: the token that transformers pads with.

        Raises:
            UnsupportedModel: padding on the left would shift the model's positions.
        """
        sections = {key: document.get(key.removesuffix("_side")) for key in ("truncation_side", "padding_side")}
        stated = {key: part.get("direction") or "right" for key, part in sections.items() if isinstance(part, dict)}
        sides = {key: str(side).lower() for key, side in stated.items() if key not in self.fields}
        settings = replace(self, sides=sides)
        if settings.padding_side == "left" and (counted := _shifted(self.config, pad_id)):
            reason = f"padding would shift the positions, which {counted}. Remove the key to pad on the right"
            raise settings.unsupported("padding_side", reason)
        return settings

    @property
    def truncation_side(self) -> str:
        """The side from which tokens are removed."""
        return self._side("truncation_side")

    @property
    def padding_side(self) -> str:
        """The side on which transformers pads. isorun pads on the right, where a model gives the same results."""
        return self._side("padding_side")

    def _side(self, key: str) -> str:
        default = "left" if key == "padding_side" and self.kind in PADS_LEFT else "right"
        return str(self.fields.get(key, self.sides.get(key, default)))

    def cleans_up(self, model: str) -> bool:
        """Whether spaces before punctuation are removed from decoded texts, by the kind of the vocabulary."""
        needed = ("clean_up_tokenization_spaces", *((_FOR_BPE,) if model == "BPE" else ()))
        return all(self.fields.get(key) for key in needed)

    @property
    def inputs(self) -> tuple[str, ...]:
        """The inputs that transformers makes from a text: of others, such as token types, models use the default."""
        if names := self.fields.get("model_input_names"):
            return tuple(names)
        types = ("token_type_ids",) if self.kind is None or self.kind in TYPED else ()
        return ("input_ids", *types, "attention_mask")

    @property
    def limit(self) -> int | None:
        """The maximum number of tokens; ``None`` if there is none."""
        limit = self.fields.get("model_max_length", self.fields.get("max_len"))
        return None if limit is None or limit >= _UNLIMITED else int(limit)

    def unsupported(self, key: str, reason: str) -> UnsupportedModel:
        """An error that names a key and its value."""
        if not key.endswith("_side") or key in self.fields:
            return UnsupportedModel(f"{self.path} has {key}={self.fields.get(key)!r}: {reason}")
        place = "tokenizer.json" if key in self.sides else self.kind
        return UnsupportedModel(f"{place} has {key}={self._side(key)!r}: {reason}")


def read(folder: Path, prefix: str = "") -> TokenizerSettings:
    """The settings in a folder with a tokenizer.

    Args:
        folder: the folder.
        prefix: how the names of the files begin, as ``isorun build`` writes them.

    Raises:
        InvalidModel: a file is damaged, or a value is not of the key's type.
        UnsupportedModel: the class does not use ``tokenizer.json``, or is code of the checkpoint.
    """
    path = folder / f"{prefix}{FILE}"
    fields = _object(path)
    check_known(fields, USED, str(path))
    config = _object(folder / f"{prefix}config.json")
    settings = TokenizerSettings(path, _kind(fields, config), fields, config=config)
    if (names := fields.get("model_input_names")) and not {"input_ids", "attention_mask"} <= set(names):
        raise settings.unsupported(
            "model_input_names", "it must contain input_ids and attention_mask: without a mask, padding changes results"
        )
    if settings.kind in SLOW:
        raise settings.unsupported("tokenizer_class", f"{settings.kind} does not use tokenizer.json")
    if "added_tokens_decoder" in fields:  # then transformers reads neither of the others
        return settings
    others = (_object(folder / f"{prefix}{name}") for name in ("special_tokens_map.json", "added_tokens.json"))
    special_tokens_map, added_tokens = others
    return replace(settings, special_tokens_map=special_tokens_map, added_tokens=added_tokens)


_ABSOLUTE = (
    *("layoutlm", "convbert", "ernie", "megatron-bert", "rembert", "roc_bert", "mobilebert", "squeezebert", "splinter"),
    *("big_bird", "nystromformer", "yoso", "bros", "xlm", "flaubert"),
)
"""The kinds of models that look positions up in a table, beside those that isorun builds."""


def _shifted(config: Mapping[str, Any], pad_id: int) -> str | None:
    """How a model counts positions, if padding on the left shifts them; ``None`` if it does not."""
    from isorun.graph.builders.architectures import ARCHITECTURES, BERT, DEBERTA

    kind = config.get("model_type")
    others = {**dict.fromkeys(_ABSOLUTE, BERT), "deberta": DEBERTA}
    architecture = {**others, **ARCHITECTURES}.get(kind) if isinstance(kind, str) else None
    relative = config.get("position_embedding_type", "absolute") != "absolute"
    if architecture is None or relative or not architecture.has_positions(config):
        return None
    skipped = architecture.padding_id
    if skipped is None:
        return "count all tokens"
    skipped = skipped if architecture.fixed_padding_id else config.get("pad_token_id", skipped)
    return None if skipped == pad_id else f"skip token {skipped}, and padding is token {pad_id}"


def _kind(fields: Mapping[str, Any], config: Mapping[str, Any]) -> str | None:
    """The class that transformers.AutoTokenizer chooses, without ``Fast``."""
    model_type = config.get("model_type")
    declared = fields.get("tokenizer_class") or config.get("tokenizer_class")
    declared = declared.removesuffix("Fast") if isinstance(declared, str) else None
    registered = REGISTERED.get(model_type) if isinstance(model_type, str) else None
    misdeclared = isinstance(model_type, str) and model_type in MISDECLARED
    automatic = fields.get("auto_map")
    if isinstance(automatic, dict):
        automatic = automatic.get("AutoTokenizer")
    if automatic and not misdeclared and (declared is None or not is_known(declared)):
        raise UnsupportedModel(
            f"{FILE} has auto_map={automatic!r}: the tokenizer is code of the checkpoint, which isorun does not run"
        )
    if declared is None:
        return resolve(registered) if registered else ("TokenizersBackend" if model_type else None)
    if registered is None or registered == declared:
        return resolve(declared)
    if registered in GENERIC:
        return "TokenizersBackend"
    return resolve(registered if misdeclared else declared)


def _object(path: Path) -> Mapping[str, Any]:
    return read_object(path) if path.is_file() else {}
