"""Builds tokenizers as transformers 5 does: the vocabulary of ``tokenizer.json``, the rest by class and settings.

A class that is not in :data:`_PIPELINES` gets ``tokenizer.json`` as it is, provided that the settings do not contradict
it. Classes of which transformers 5 makes other tokens are refused.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from isorun.errors import UnsupportedModel
from isorun.models import tokenizer_file, vocabulary_files
from isorun.models.special_tokens import SpecialTokens
from isorun.models.tokenizer_config import TokenizerSettings
from isorun.models.tokenizer_names import DEFAULTS, REBUILT, STEPS

if TYPE_CHECKING:
    import tokenizers

_QWEN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|"
    r"\s+(?!\S)|\s+"
)

_COMPONENTS = ("normalizer", "pre_tokenizer", "post_processor", "decoder")

_IF_RIGHT = "If the file is right, set tokenizer_class to 'PreTrainedTokenizerFast'"

_Texts = Mapping[str, str]
_Pipeline = Callable[[Mapping[str, Any], TokenizerSettings, _Texts], "tokenizers.Tokenizer"]


class Built(NamedTuple):
    """A tokenizer of the package ``tokenizers``, the ids that count as special, the id of padding, the special tokens
    by name, and the settings with what only the file itself states."""

    library: tokenizers.Tokenizer
    special_ids: frozenset[int]
    pad_id: int
    special_tokens: Mapping[str, str]
    settings: TokenizerSettings


def build(path: Path, settings: TokenizerSettings, *, plain: bool = False) -> Built:
    """The tokenizer of a file, without truncation and padding.

    Args:
        path: the file.
        settings: what the files beside it state.
        plain: whether the number of tokens to which the file itself would truncate is the limit.

    Raises:
        InvalidModel: the file is damaged.
        UnsupportedModel: the settings contradict it.
    """
    import tokenizers

    if vocabulary_files.is_vocabulary(path):
        document = vocabulary_files.read(path)
        if settings.kind not in _PIPELINES:
            raise vocabulary_files.unsupported(path, settings.kind)
    else:
        document = tokenizer_file.read(path)
        if settings.kind == "LlamaTokenizer" and "ByteLevel" in _types(path, *map(document.get, _COMPONENTS)):
            settings = replace(settings, kind="TokenizersBackend")  # Llama 3's files name the class of Llama 2
    with tokenizer_file.guarded(path):
        tokens = SpecialTokens(settings, document)
        pipeline = _PIPELINES.get(settings.kind or "")
        if pipeline is None:
            _reject_contradictions(path, settings, document)
            library = tokenizers.Tokenizer.from_buffer(path.read_bytes())
        else:
            _require_model(path, settings, document)
            library = pipeline(document, settings, tokens.texts)
            _keep_processor(library, document)
        if not plain:
            library.encode_special_tokens = bool(settings.fields.get("split_special_tokens"))
            tokens.add_to(library)
        if pipeline is not None:
            _set_processor(library, settings, tokens.texts, has_file=not vocabulary_files.is_vocabulary(path))
        if settings.kind == "Qwen2Tokenizer":
            library.add_tokens([tokenizers.AddedToken(text, special=True) for text in tokens.contents])
        ids = map(library.token_to_id, tokens.contents)
        special_ids = frozenset(number for number in ids if number is not None)
        padding, truncation = document.get("padding"), library.truncation  # a class is built without padding
        pad_id = library.token_to_id(tokens.texts.get("pad_token") or (padding or {}).get("pad_token") or "[PAD]")
        library.no_padding()  # all-MiniLM-L6-v2's file would pad to 128, as if that were text
        library.no_truncation()
        pad_id = pad_id if pad_id is not None else padding["pad_id"] if padding else 0
        if not plain:
            settings = settings.completed(document, pad_id)
        elif truncation:
            settings = TokenizerSettings(path, fields={"model_max_length": truncation["max_length"]})
        return Built(library, special_ids, pad_id, tokens.texts, settings)


def _require_model(path: Path, settings: TokenizerSettings, document: Mapping[str, Any]) -> None:
    model, pairs = document["model"], settings.kind in _BYTE_PAIRS
    listed = settings.kind in _UNIGRAMS
    vocabulary, merges = model.get("vocab"), model.get("merges")
    if not isinstance(vocabulary, list if listed else dict) or (pairs and not isinstance(merges, list)):
        needed = "Unigram" if listed else "BPE" if pairs else "WordPiece"
        raise settings.unsupported(
            "tokenizer_class", f"{settings.kind} needs a model of type {needed}, and {path} has {model.get('type')}"
        )


def _word_pieces(document: Mapping[str, Any], settings: TokenizerSettings, texts: _Texts) -> tokenizers.Tokenizer:
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

    library = Tokenizer(models.WordPiece(document["model"]["vocab"], unk_token=texts["unk_token"]))
    library.normalizer = normalizers.BertNormalizer(
        clean_text=True,
        handle_chinese_chars=bool(settings.fields.get("tokenize_chinese_chars", True)),
        strip_accents=settings.fields.get("strip_accents"),
        lowercase=bool(settings.fields.get("do_lower_case", True)),
    )
    library.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    library.decoder = decoders.WordPiece()
    return library


def _byte_pairs(document: Mapping[str, Any], settings: TokenizerSettings, texts: _Texts) -> tokenizers.Tokenizer:
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

    model, prefix = document["model"], bool(settings.fields.get("add_prefix_space"))
    options: dict[str, Any] = {"continuing_subword_prefix": "", "end_of_word_suffix": "", "fuse_unk": False}
    if settings.kind == "GemmaTokenizer":
        options = {"fuse_unk": True, "unk_token": texts["unk_token"], "byte_fallback": True}
    elif settings.kind == "LlamaTokenizer":
        options = {"fuse_unk": True, "byte_fallback": True}
    merges = [tuple(merge.split(" ") if isinstance(merge, str) else merge) for merge in model["merges"]]
    library = Tokenizer(models.BPE(vocab=model["vocab"], merges=merges, dropout=None, **options))
    of_spaces = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    library.decoder = decoders.ByteLevel()
    if settings.kind == "GemmaTokenizer":
        library.decoder = decoders.Sequence(of_spaces)
        library.normalizer = normalizers.Replace(" ", "▁")
        library.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    elif settings.kind == "LlamaTokenizer":
        always = "always" if settings.fields.get("legacy") else "first"
        prepends = settings.fields.get("add_prefix_space") in (None, True)
        scheme = always if prepends else "never"
        library.decoder = decoders.Sequence([*of_spaces, *([decoders.Strip(" ", 1, 0)] if prepends else [])])
        library.pre_tokenizer = pre_tokenizers.Metaspace("▁", prepend_scheme=scheme, split=False)
    elif settings.kind == "Qwen2Tokenizer":
        library.normalizer = normalizers.NFC()
        byte_level = pre_tokenizers.ByteLevel(add_prefix_space=prefix, use_regex=False)
        library.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(_QWEN), "isolated"), byte_level])
    else:
        if settings.kind == "GPTNeoXTokenizer":
            library.normalizer = normalizers.NFC()
        library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix)
    return library


def _unigrams(document: Mapping[str, Any], settings: TokenizerSettings, texts: _Texts) -> tokenizers.Tokenizer:
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

    kind, fields = settings.kind or "", settings.fields
    pieces = [(token, score) for token, score in document["model"]["vocab"]]
    unknown = _UNIGRAMS[kind]
    if kind == "CamembertTokenizer":
        unknown = next((number for number, (token, _) in enumerate(pieces) if token == texts["unk_token"]), 0)
    elif kind == "DebertaV2Tokenizer":
        piece = (texts["unk_token"], 0.0)
        unknown = pieces.index(piece) if piece in pieces else int(fields.get("unk_id", unknown))
    library = Tokenizer(models.Unigram(pieces, unk_id=unknown, byte_fallback=False))
    steps: list[Any] = []
    if kind == "DebertaV2Tokenizer":
        steps = [normalizers.Lowercase()] if fields.get("do_lower_case") else []
        steps += [normalizers.Replace(Regex(r"\s{2,}|[\n\r\t]"), " "), normalizers.NFC(), normalizers.Strip(left=False)]
    elif kind == "AlbertTokenizer":
        steps = [normalizers.Replace("``", '"'), normalizers.Replace("''", '"')]
        steps += [] if fields.get("keep_accents") else [normalizers.NFKD(), normalizers.StripAccents()]
        steps += [normalizers.Lowercase()] if fields.get("do_lower_case", True) else []
    if kind != "DebertaV2Tokenizer" and (character_map := _character_map(document)):
        steps.append(normalizers.Precompiled(character_map))
    if steps:
        library.normalizer = steps[0] if len(steps) == 1 else normalizers.Sequence(steps)
    splits: list[Any] = [pre_tokenizers.WhitespaceSplit()]
    if kind == "DebertaV2Tokenizer":
        splits = [pre_tokenizers.Punctuation("isolated")] if fields.get("split_by_punct") else []
    without = "first" if kind == "DebertaV2Tokenizer" else "never"
    scheme = "always" if fields.get("add_prefix_space", True) or kind == "T5Tokenizer" else without
    library.pre_tokenizer = pre_tokenizers.Sequence([*splits, pre_tokenizers.Metaspace("▁", prepend_scheme=scheme)])
    library.decoder = decoders.Metaspace("▁", prepend_scheme=scheme)
    return library


def _character_map(document: Mapping[str, Any]) -> bytes | None:
    """SentencePiece's character map, where transformers looks for it."""
    normalizer = document.get("normalizer")
    if isinstance(normalizer, dict) and normalizer.get("type") == "Sequence":
        normalizer = normalizer.get("normalizers")
    for step in normalizer if isinstance(normalizer, list) else [normalizer]:
        if isinstance(step, dict) and step.get("type") == "Precompiled":
            return base64.b64decode(step.get("precompiled_charsmap") or "")
    return None


_BARE = ("GemmaTokenizer", "LlamaTokenizer", "Qwen2Tokenizer", "GPT2Tokenizer", "GPTNeoXTokenizer")
"""Classes that add no special tokens."""
_BYTE_PAIRS = ("RobertaTokenizer", "DebertaTokenizer", *_BARE)
_UNIGRAMS = {
    **{"XLMRobertaTokenizer": 3, "CamembertTokenizer": 0, "T5Tokenizer": 2, "AlbertTokenizer": 1},
    "DebertaV2Tokenizer": 1,
}
"""Classes, and the id of the unknown token where no file states it."""
_PIPELINES: Mapping[str, _Pipeline] = {
    **dict.fromkeys(("BertTokenizer", "DistilBertTokenizer", "MPNetTokenizer"), _word_pieces),
    **dict.fromkeys(_BYTE_PAIRS, _byte_pairs),
    **dict.fromkeys(_UNIGRAMS, _unigrams),
}


def _keep_processor(library: tokenizers.Tokenizer, document: Mapping[str, Any]) -> None:
    """Take the post-processor of the file."""
    from tokenizers import Tokenizer

    if (settings := document.get("post_processor")) is not None:
        model = {"type": "WordLevel", "vocab": {}, "unk_token": ""}
        file = {"version": "1.0", "added_tokens": [], "model": model, "post_processor": settings}
        library.post_processor = Tokenizer.from_str(json.dumps(file)).post_processor


def _set_processor(
    library: tokenizers.Tokenizer, settings: TokenizerSettings, texts: _Texts, *, has_file: bool
) -> None:
    """The post-processor of a class, where it does not keep that of ``tokenizer.json``, if there is one."""
    from tokenizers import processors

    kind, fields = settings.kind or "", settings.fields

    def number(text: str) -> int:
        number = library.token_to_id(text)
        if number is None:
            raise UnsupportedModel(f"{settings.path}: {kind} needs the token {text!r}, which the vocabulary lacks")
        return int(number)

    if kind in ("RobertaTokenizer", "MPNetTokenizer"):
        sep, cls = texts["sep_token"], texts["cls_token"]
        trim, prefix = bool(fields.get("trim_offsets", True)), bool(fields.get("add_prefix_space"))
        options = (True, False) if kind == "MPNetTokenizer" else (trim, prefix)
        library.post_processor = processors.RobertaProcessing((sep, number(sep)), (cls, number(cls)), *options)
        return
    if kind in ("XLMRobertaTokenizer", "CamembertTokenizer", "DebertaTokenizer"):
        names = ("cls_token", "sep_token") if kind == "DebertaTokenizer" else ("bos_token", "eos_token")
        first, last = (texts[name] for name in names)
        single = [first, "$A", last]
        pair = [*single, last, "$B", last]
    elif kind == "T5Tokenizer":
        first = last = texts["eos_token"]
        single, pair = ["$A", last], ["$A", last, "$B", last]
    elif kind == "GPTNeoXTokenizer" or (kind in _BARE and library.post_processor is None):
        added = {name for name in ("bos_token", "eos_token") if fields.get(f"add_{name}") and not has_file}
        first, last = (texts.get(name, "") if name in added else "" for name in ("bos_token", "eos_token"))
        single = [piece for piece in (first, "$A", last) if piece]
        pair = [*single, *(f"{piece}:1" for piece in (first, "$B", last) if piece)]
    elif kind in ("BertTokenizer", "DistilBertTokenizer", "DebertaV2Tokenizer") or library.post_processor is None:
        first, last = texts["cls_token"], texts["sep_token"]
        single = [f"{first}:0", "$A:0", f"{last}:0"]
        pair = [*single, "$B:1", f"{last}:1"]
    else:
        return
    specials = [(text, number(text)) for text in dict.fromkeys((first, last)) if text]
    library.post_processor = processors.TemplateProcessing(single=single, pair=pair, special_tokens=specials)


def _types(path: Path, *components: Any) -> tuple[str, ...]:
    """The types of all steps."""
    steps = (node.get("type") for component in components for node in tokenizer_file.nodes(path, component))
    return tuple(step for step in steps if isinstance(step, str) and step != "Sequence")


def _reject_contradictions(path: Path, settings: TokenizerSettings, document: Mapping[str, Any]) -> None:
    """Reject settings that a class would apply and the file does not."""
    if settings.kind in (None, "TokenizersBackend"):
        return  # the generic class ignores them
    if settings.kind in REBUILT:
        raise settings.unsupported(
            "tokenizer_class",
            f"transformers builds {settings.kind} from the vocabulary alone, and isorun would use all of {path}. "
            f"{_IF_RIGHT}",
        )
    expected = STEPS.get(settings.kind or "")
    steps = (_types(path, document.get(key)) for key in ("normalizer", "pre_tokenizer"))
    if expected is not None and expected != (document["model"].get("type"), *steps):
        shown = " + ".join((expected[0], *expected[1], *expected[2]))
        raise settings.unsupported(
            "tokenizer_class", f"transformers builds {settings.kind} as {shown}, and {path} differs. {_IF_RIGHT}"
        )
    if document.get("post_processor") is None:
        raise settings.unsupported(
            "tokenizer_class", f"{settings.kind} has a post_processor, and {path} has none. {_IF_RIGHT}"
        )
    parts = [*tokenizer_file.nodes(path, document.get("normalizer"))]
    splits = [*tokenizer_file.nodes(path, document.get("pre_tokenizer"))]
    lowers = any(part.get("type") == "Lowercase" or part.get("lowercase") is True for part in parts)
    strips = any(part.get("type") == "StripAccents" or part.get("strip_accents") is True for part in parts)
    prefixes = any(
        part.get("add_prefix_space") is True or part.get("prepend_scheme") in ("always", "first")
        for part in (*splits, *({"prepend_scheme": "first"} for part in parts if part.get("type") == "Prepend"))
    )
    stated = [("do_lower_case", lowers), ("strip_accents", strips), ("add_prefix_space", prefixes)]
    stated += [
        ("tokenize_chinese_chars", part["handle_chinese_chars"]) for part in parts if "handle_chinese_chars" in part
    ]
    for key, holds in stated:
        value = settings.fields.get(key, DEFAULTS.get(key, {}).get(settings.kind or ""))
        if value is not None and value != holds:
            raise settings.unsupported(key, f"{path} contradicts it, and isorun does not build {settings.kind} itself")
