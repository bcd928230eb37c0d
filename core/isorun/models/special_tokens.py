"""The special and added tokens of a tokenizer: those of ``tokenizer.json``, and those that only other files name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from isorun.models.tokenizer_config import SPECIAL_TOKENS, TokenizerSettings

if TYPE_CHECKING:
    import tokenizers

_BERT = {"unk_token": "[UNK]", "sep_token": "[SEP]", "pad_token": "[PAD]", "cls_token": "[CLS]", "mask_token": "[MASK]"}
_MARKUP = {
    **{"bos_token": "<s>", "eos_token": "</s>", "sep_token": "</s>", "cls_token": "<s>"},
    **{"unk_token": "<unk>", "pad_token": "<pad>", "mask_token": "<mask>"},
}
_LAST = "<|endoftext|>"
_DEFAULTS: Mapping[str, Mapping[str, str]] = {
    "BertTokenizer": _BERT,
    "DistilBertTokenizer": _BERT,
    "MPNetTokenizer": {**_MARKUP, "unk_token": "[UNK]"},
    "RobertaTokenizer": _MARKUP,
    "XLMRobertaTokenizer": _MARKUP,
    "CamembertTokenizer": _MARKUP,
    "T5Tokenizer": {"eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"},
    "GemmaTokenizer": {
        **{"unk_token": "<unk>", "bos_token": "<bos>", "eos_token": "<eos>", "pad_token": "<pad>"},
        "mask_token": "<mask>",
    },
    "LlamaTokenizer": {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"},
    "Qwen2Tokenizer": {"unk_token": _LAST, "eos_token": _LAST, "pad_token": _LAST},
    "GPT2Tokenizer": {"unk_token": _LAST, "bos_token": _LAST, "eos_token": _LAST},
    "GPTNeoXTokenizer": {"unk_token": _LAST, "bos_token": _LAST, "eos_token": _LAST, "pad_token": "<|padding|>"},
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
        texts: the named ones, such as ``cls_token``.
        contents: all that count as special, without repetition.
    """

    def __init__(self, settings: TokenizerSettings, document: Mapping[str, Any]) -> None:
        self._listed = _added_tokens(settings, document)
        by_content = {token.content: token for token in self._listed}
        named = {key: by_content.get(_text(token), token) for key, token in _named_tokens(settings).items()}
        self.texts: dict[str, str] = {key: _text(token) for key, token in named.items()}
        self._others = [*named.values(), *_extra_tokens(settings)]
        self.contents: tuple[str, ...] = tuple(dict.fromkeys(map(_text, self._others)))

    def add_to(self, library: tokenizers.Tokenizer) -> None:
        """Add those that are not added tokens yet, as ``transformers.TokenizersBackend`` does."""
        import tokenizers

        own = {repr(token) for token in library.get_added_tokens_decoder().values()}
        adding = [token for token in self._listed if repr(token) not in own]
        present = {token.content for token in (*library.get_added_tokens_decoder().values(), *adding)}
        for token in self._others:
            if _text(token) not in present:
                present.add(_text(token))
                adding.append(token)
        named = {_text(token) for token in self._others}
        for position, token in enumerate(adding):
            if isinstance(token, str):
                adding[position] = tokenizers.AddedToken(token, special=True)
            elif not token.special and token.content in named:
                token.special = True
        if adding:
            library.add_tokens(adding)


def _text(token: Any) -> str:
    return token if isinstance(token, str) else str(token.content)


def _named_tokens(settings: TokenizerSettings) -> dict[str, Any]:
    """The special tokens by name, each a string or an ``AddedToken``, in transformers' order."""
    import tokenizers

    tokens: dict[str, Any] = dict(_DEFAULTS.get(settings.kind or "", {}))
    merged = {**settings.fields, **settings.special_tokens_map}
    extra = _extra(settings)
    more = {key: value for key, value in merged.items() if key.endswith("_token") and isinstance(value, str | dict)}
    for key, value in {**more, **(extra if isinstance(extra, dict) else {})}.items():
        tokens[key] = _token(value)
    for key in SPECIAL_TOKENS:
        if key in merged and merged[key] is None:
            if key in _DEFAULTS.get(settings.kind or "", {}):
                raise settings.unsupported(key, f"{settings.kind} needs this token")
            tokens.pop(key, None)
    for key in SPECIAL_TOKENS:  # the flags that these classes give to what is only a text
        text = tokens.get(key)
        if isinstance(text, str) and settings.kind == "MPNetTokenizer":
            tokens[key] = tokenizers.AddedToken(text, lstrip=key == "mask_token")
        elif isinstance(text, str) and settings.kind == "CamembertTokenizer" and key == "mask_token":
            tokens[key] = tokenizers.AddedToken(text, lstrip=True, special=True)
    order = (*SPECIAL_TOKENS, *(key for key in tokens if key not in SPECIAL_TOKENS))
    return {key: tokens[key] for key in order if key in tokens}


def _extra_tokens(settings: TokenizerSettings) -> list[Any]:
    """Special tokens without a name."""
    listed = _extra(settings)
    if isinstance(listed, list):
        return [_token(value) for value in listed]
    if settings.kind == "T5Tokenizer":
        return [f"<extra_id_{number}>" for number in range(int(settings.fields.get("extra_ids", 100)))]
    return ["<s>NOTUSED", "</s>NOTUSED", "<unk>NOTUSED"] if settings.kind == "CamembertTokenizer" else []


def _extra(settings: TokenizerSettings) -> Any:
    """A list of special tokens without names, or an object of others: first what ``tokenizer_config.json`` states."""
    keys = ("extra_special_tokens", "additional_special_tokens")
    return next(
        (file[key] for file in (settings.fields, settings.special_tokens_map) for key in keys if file.get(key)), None
    )


def _token(value: Any) -> Any:
    """A special token of a JSON file: a string, or an object with flags."""
    import tokenizers

    if not isinstance(value, dict):
        return str(value)
    flags = {key: bool(value[key]) for key in ("single_word", "lstrip", "rstrip", "normalized") if key in value}
    return tokenizers.AddedToken(str(value.get("content", "")), special=bool(value.get("special", True)), **flags)


def _added_tokens(settings: TokenizerSettings, document: Mapping[str, Any]) -> list[Any]:
    """The tokens with ids in the order of the ids: ``added_tokens_decoder``, or the older files' ones."""
    decoder = settings.fields.get("added_tokens_decoder")
    if decoder is not None:
        return [_token({"special": False, **decoder[key]}) for key in sorted(decoder, key=int)]
    specials = {str(value) for value in settings.fields.values() if isinstance(value, str)}
    older = {
        int(number): _token({"content": text, "normalized": text not in specials, "special": text in specials})
        for text, number in settings.added_tokens.items()
    }
    own = {int(token["id"]): _token({"special": False, **token}) for token in document.get("added_tokens") or ()}
    return [token for _, token in sorted({**older, **own}.items())]
