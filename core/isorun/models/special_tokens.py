"""The special and added tokens of a tokenizer: those of ``tokenizer.json``, and those that only other files name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from isorun.models.tokenizer_config import SPECIAL_TOKENS, TokenizerSettings

if TYPE_CHECKING:
    import tokenizers

_BERT = {"unk_token": "[UNK]", "sep_token": "[SEP]", "pad_token": "[PAD]", "cls_token": "[CLS]", "mask_token": "[MASK]"}
_MARKUP = {
    **{"bos_token": "<s>", "eos_token": "</s>", "sep_token": "</s>", "cls_token": "<s>"},
    **{"unk_token": "<unk>", "pad_token": "<pad>", "mask_token": "<mask>"},
}
_LAST = "<|endoftext|>"
_EXTRA, _ADDITIONAL, _OWN = "extra_special_tokens", "additional_special_tokens", "model_specific_special_tokens"
_BERTS = "BertTokenizer DistilBertTokenizer ConvBertTokenizer LayoutLMv2Tokenizer"
_DPR = "DPRContextEncoderTokenizer DPRQuestionEncoderTokenizer DPRReaderTokenizer"
_MARKUPS = (
    "RobertaTokenizer XLMRobertaTokenizer CamembertTokenizer BlenderbotTokenizer LayoutLMv3Tokenizer LukeTokenizer "
    "MarkupLMTokenizer"
)
_GPT2 = {"unk_token": _LAST, "bos_token": _LAST, "eos_token": _LAST}
_QWEN2 = {"unk_token": _LAST, "eos_token": _LAST, "pad_token": _LAST}
_DEFAULTS: Mapping[str, Mapping[str, str]] = {
    **dict.fromkeys(f"{_BERTS} {_DPR}".split(), _BERT),
    **dict.fromkeys(_MARKUPS.split(), _MARKUP),
    **dict.fromkeys(("GPT2Tokenizer", "CodeGenTokenizer"), _GPT2),
    **dict.fromkeys(("Qwen2Tokenizer", "Qwen3_5Tokenizer"), _QWEN2),
    "MPNetTokenizer": {**_MARKUP, "unk_token": "[UNK]"},
    "SplinterTokenizer": {**_BERT, "question_token": "[QUESTION]"},
    "FunnelTokenizer": {
        **{"unk_token": "<unk>", "sep_token": "<sep>", "pad_token": "<pad>", "cls_token": "<cls>"},
        **{"mask_token": "<mask>", "bos_token": "<s>", "eos_token": "</s>"},
    },
    "HerbertTokenizer": {key: text for key, text in _MARKUP.items() if key not in ("bos_token", "eos_token")},
    "CLIPTokenizer": {**_GPT2, "bos_token": "<|startoftext|>", "pad_token": _LAST},
    "OpenAIGPTTokenizer": {"unk_token": "<unk>"},
    "T5Tokenizer": {"eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"},
    "GemmaTokenizer": {
        **{"unk_token": "<unk>", "bos_token": "<bos>", "eos_token": "<eos>", "pad_token": "<pad>"},
        "mask_token": "<mask>",
    },
    "LlamaTokenizer": {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"},
    "GPTNeoXTokenizer": {**_GPT2, "pad_token": "<|padding|>"},
    "DebertaTokenizer": {**_BERT, "bos_token": "[CLS]", "eos_token": "[SEP]"},
    "DebertaV2Tokenizer": {**_BERT, "bos_token": "[CLS]", "eos_token": "[SEP]"},
    "AlbertTokenizer": {
        **_BERT,
        **{"bos_token": "[CLS]", "eos_token": "[SEP]", "unk_token": "<unk>", "pad_token": "<pad>"},
    },
}
"""The special tokens that a class has where no file names others."""


class SpecialTokens:
    """What the files and the class name.

    Attributes:
        texts: the named ones, such as ``cls_token``. One that a file sets to ``null`` is missing: reading it raises
            ``UnsupportedModel``.
        contents: all that count as special, without repetition.
    """

    def __init__(self, settings: TokenizerSettings, document: Mapping[str, Any]) -> None:
        stated = _stated(settings)
        self._listed = _added_tokens(settings, document, stated)
        by_content = {token.content: token for token in self._listed}
        tokens = _named_tokens(stated, settings, document)
        named = {key: by_content.get(_text(token), token) for key, token in tokens.items()}
        self.texts: Mapping[str, str] = _Texts(settings, {key: _text(token) for key, token in named.items()})
        self._others = [*named.values(), *map(_token, stated.extra)]
        self.contents: tuple[str, ...] = tuple(dict.fromkeys(map(_text, self._others)))

    def add_to(self, library: tokenizers.Tokenizer) -> None:
        """Add those that are not added tokens yet, as ``transformers.TokenizersBackend`` does."""
        import tokenizers

        own = {repr(token) for token in library.get_added_tokens_decoder().values()}
        named = self.texts.values()
        # A token that is there already and is no special one yet becomes special by its name.
        adding = [
            token for token in self._listed if repr(token) not in own or (token.content in named and not token.special)
        ]
        present = {token.content for token in (*library.get_added_tokens_decoder().values(), *adding)}
        for token in self._others:
            if _text(token) not in present:
                present.add(_text(token))
                adding.append(token)
        for position, token in enumerate(adding):
            if isinstance(token, str):
                adding[position] = tokenizers.AddedToken(token, special=True)
            elif token.content in named:
                token.special = True
        if adding:
            library.add_tokens(adding)


class _Texts(dict[str, str]):
    def __init__(self, settings: TokenizerSettings, texts: Mapping[str, str]) -> None:
        super().__init__(texts)
        self._settings = settings

    def __missing__(self, key: str) -> str:
        raise self._settings.unsupported(key, f"{self._settings.kind} needs this token")


def _text(token: Any) -> str:
    return token if isinstance(token, str) else str(token.content)


def _named_tokens(stated: _Stated, settings: TokenizerSettings, document: Mapping[str, Any]) -> dict[str, Any]:
    """The special tokens by name, each a string or an ``AddedToken``, in transformers' order."""
    import tokenizers

    defaults = _DEFAULTS.get(settings.kind or "", {})
    tokens: dict[str, Any] = dict(defaults)
    padding = document.get("padding")
    if not defaults and isinstance(padding, dict) and "pad_token" not in stated.fields:
        tokens["pad_token"] = str(padding.get("pad_token", "[PAD]"))
    named = {key: stated.fields[key] for key in SPECIAL_TOKENS if key in stated.fields}
    for key, value in {**named, **stated.own}.items():
        if value is None:
            tokens.pop(key, None)
        else:
            tokens[key] = _token(value)
    for key in SPECIAL_TOKENS:  # the flags that these classes give to what is only a text
        text = tokens.get(key)
        if isinstance(text, str) and settings.kind == "MPNetTokenizer":
            tokens[key] = tokenizers.AddedToken(text, lstrip=key == "mask_token")
        elif isinstance(text, str) and settings.kind == "CamembertTokenizer" and key == "mask_token":
            tokens[key] = tokenizers.AddedToken(text, lstrip=True, special=True)
    order = (*SPECIAL_TOKENS, *(key for key in tokens if key not in SPECIAL_TOKENS))
    return {key: tokens[key] for key in order if key in tokens}


class _Stated(NamedTuple):
    """What the files state, as transformers merges them: all fields, special tokens by names of the model's own, and
    those without a name."""

    fields: Mapping[str, Any]
    own: Mapping[str, Any]
    extra: Sequence[Any]


def _stated(settings: TokenizerSettings) -> _Stated:
    fields = dict(settings.fields)
    if not fields.get(_EXTRA) and _ADDITIONAL in fields:
        fields[_EXTRA] = fields.pop(_ADDITIONAL)
    own = _own_names(fields)
    if isinstance(fields.get(_EXTRA), dict):
        own |= fields.pop(_EXTRA)
    own = own or _object(settings, _OWN, fields.get(_OWN))
    for key, value in settings.special_tokens_map.items():
        extends = key == _EXTRA and isinstance(value, list) and isinstance(fields.get(key), list)
        fields[key] = [*fields[key], *value] if extends else value
    own = {**_own_names(fields), **own}
    if isinstance(fields.get(_EXTRA), dict):
        own |= fields.pop(_EXTRA)
    extra = fields[_EXTRA] if _EXTRA in fields else _of_class(settings, fields.get(_ADDITIONAL))
    if not isinstance(extra, list | None):
        raise settings.unsupported(_EXTRA, f"expected a list or an object, got {extra!r}")
    return _Stated(fields, own, extra or [])


def _of_class(settings: TokenizerSettings, listed: Any) -> Any:
    """Special tokens without a name, as the class completes what only ``special_tokens_map.json`` lists."""
    if settings.kind == "T5Tokenizer" and "<extra_id_" not in str(listed):
        return [
            *(listed or ()),
            *(f"<extra_id_{number}>" for number in range(int(settings.fields.get("extra_ids", 100)))),
        ]
    if settings.kind == "CamembertTokenizer" and listed is None:
        return ["<s>NOTUSED", "</s>NOTUSED", "<unk>NOTUSED"]
    return listed


def _own_names(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The special tokens whose names are no usual ones."""
    names = (key for key in fields if key.endswith("_token") and key not in SPECIAL_TOKENS)
    return {key: fields[key] for key in names if isinstance(fields[key], str | dict)}


def _object(settings: TokenizerSettings, key: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict | None):
        raise settings.unsupported(key, "expected an object of tokens")
    return dict(value or {})


def _token(value: Any) -> Any:
    """A special token of a JSON file: a string, or an object with flags."""
    import tokenizers

    if not isinstance(value, dict):
        return str(value)
    flags = {key: bool(value[key]) for key in ("single_word", "lstrip", "rstrip", "normalized") if key in value}
    return tokenizers.AddedToken(str(value.get("content", "")), special=bool(value.get("special", True)), **flags)


def _added_tokens(settings: TokenizerSettings, document: Mapping[str, Any], stated: _Stated) -> list[Any]:
    """The tokens with ids in the order of the ids: ``added_tokens_decoder``, or the older files' ones."""
    decoder = settings.fields.get("added_tokens_decoder")
    if decoder is not None:
        return [_token({"special": False, **decoder[key]}) for key in sorted(decoder, key=int)]
    named = [stated.fields.get(key) for key in SPECIAL_TOKENS]
    listed = stated.fields.get(_EXTRA) or ()
    specials = {value for value in (*named, *listed) if isinstance(value, str)}
    specials |= {str(value.get("content")) for value in settings.special_tokens_map.values() if isinstance(value, dict)}
    older = {
        int(number): _token({"content": text, "normalized": text not in specials, "special": text in specials})
        for text, number in settings.added_tokens.items()
    }
    own = {int(token["id"]): _token({"special": False, **token}) for token in document.get("added_tokens") or ()}
    return [token for _, token in sorted({**older, **own}.items())]
