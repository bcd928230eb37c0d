"""Compares isorun's tokenizers with ``transformers.AutoTokenizer`` for settings of ten classes and hard texts."""

import json
import random
from pathlib import Path
from typing import Any

import pytest

from isorun.errors import InvalidModel, UnsupportedModel
from isorun.models.tokenizer import Tokenizer

pytestmark = [pytest.mark.long, pytest.mark.filterwarnings("ignore")]

_MARKS = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
_BRACKETS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
_SNIPPETS = (
    *(
        "Hello World",
        "naïve café",
        "ÀÉÎõü",
        "e\u0301a\u0300",
        "中文字符测试",
        "日本語テスト",
        "한국어",
        "عربي",
        "हिन्दी",
        "🙂👍🏽",
    ),
    *("  two  spaces ", "\ttab\nline\r\n", "\u00a0nbsp\u3000wide", "\u200bzero\u200d", "\ufeffbom", "it's don't WE'LL"),
    *("1234567890", "3.14,15", "a_b-c/d", "!?.,;:", "``quotes''", "<s>", "</s>", "<pad>", "<mask>", "[CLS]", "[SEP]"),
    *("[MASK]", "<bos>", "<|endoftext|>", "<extra_id_0>", "@@", "<new>", "ﬁ ﬃ ½ ①", "\ufdfa", "İstanbul ß", "\x00\x07"),
    *("▁", "Ġ", "##ing", "", " ", "the quick brown fox", "UPPER lower", "x" * 120, "\U0001d54f\U0001d556"),
)


def _texts() -> list[str]:
    chosen = random.Random(0)
    mixed = [chosen.choice(["", " "]).join(chosen.choices(_SNIPPETS, k=chosen.randint(2, 6))) for _ in range(160)]
    return [*_SNIPPETS, *mixed]


def _save(folder: Path, kind: str) -> None:
    """Train a tokenizer as it is published for a class."""
    from tokenizers import Tokenizer as Library
    from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

    corpus = [snippet for snippet in _SNIPPETS if "<" not in snippet and "[" not in snippet] * 3
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    if kind == "bert":
        library = Library(models.WordPiece(unk_token="[UNK]"))
        library.normalizer = normalizers.BertNormalizer(lowercase=False)
        library.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        trainer: Any = trainers.WordPieceTrainer(vocab_size=400, special_tokens=_BRACKETS, show_progress=False)
    elif kind in ("roberta", "qwen2", "gpt2", "gpt_neox", "deberta"):
        library = Library(models.BPE())
        library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        library.decoder = decoders.ByteLevel()
        special = {"roberta": _MARKS, "deberta": _BRACKETS}.get(kind, ["<|endoftext|>"])
        trainer = trainers.BpeTrainer(
            vocab_size=500, special_tokens=special, initial_alphabet=alphabet, show_progress=False
        )
    elif kind in ("gemma", "llama"):
        library = Library(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
        spaces = normalizers.Replace(" ", "▁")
        library.normalizer = spaces if kind == "gemma" else normalizers.Sequence([normalizers.Prepend("▁"), spaces])
        special = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>"] if kind == "gemma" else ["<unk>", "<s>", "</s>"]
        special += [f"<0x{byte:02X}>" for byte in range(256)]
        trainer = trainers.BpeTrainer(vocab_size=600, special_tokens=special, show_progress=False)
    else:
        library = Library(models.Unigram())
        library.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace("▁", prepend_scheme="always")]
        )
        special = ["<pad>", "</s>", "<unk>"] if kind == "t5" else ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
        trainer = trainers.UnigramTrainer(
            vocab_size=300, special_tokens=special, unk_token="<unk>", show_progress=False
        )
    library.train_from_iterator(corpus, trainer)
    firsts = {"bert": "[CLS]", "deberta": "[CLS]", "gemma": "<bos>"}
    first = {**dict.fromkeys(("roberta", "xlm-roberta", "llama"), "<s>"), **firsts}.get(kind, "")
    lasts = {**dict.fromkeys(("roberta", "xlm-roberta", "t5"), "</s>"), "bert": "[SEP]", "deberta": "[SEP]"}
    last = lasts.get(kind, "<|endoftext|>")
    last = "" if kind in ("gemma", "llama") else last
    library.post_processor = processors.TemplateProcessing(
        single=f"{first} $A {last}".strip(),
        pair=f"{first} $A {last} $B:1 {last}".replace("  ", " ").strip(),
        special_tokens=[(token, library.token_to_id(token)) for token in {first, last} - {""}],
    )
    library.save(str(folder / "tokenizer.json"))
    (folder / "config.json").write_text(json.dumps({"model_type": kind}))


_CLASSES = {
    "bert": "BertTokenizer",
    "roberta": "RobertaTokenizer",
    "xlm-roberta": "XLMRobertaTokenizerFast",
    "t5": "T5Tokenizer",
    "gemma": "GemmaTokenizerFast",
    "llama": "LlamaTokenizerFast",
    "qwen2": "Qwen2Tokenizer",
    "gpt2": "GPT2Tokenizer",
    "gpt_neox": "GPTNeoXTokenizerFast",
    "deberta": "DebertaTokenizer",
}
_ADDED = {"content": "<new>", "single_word": False, "lstrip": True, "rstrip": False, "normalized": False}
_CONFIGS: tuple[dict[str, Any], ...] = (
    {},
    {"tokenizer_class": None},
    {"tokenizer_class": "PreTrainedTokenizerFast"},
    {"tokenizer_class": "TokenizersBackend", "mask_token": "@@", "do_lower_case": True},
    {"tokenizer_class": "NoSuchTokenizer"},
    {"do_lower_case": False},
    {"do_lower_case": True, "strip_accents": False},
    {"do_lower_case": False, "strip_accents": True},
    {"tokenize_chinese_chars": False},
    {"legacy": True},
    {"add_prefix_space": True},
    {"add_prefix_space": False},
    {"trim_offsets": False},
    {"truncation_side": "left"},
    {"truncation_side": "left", "model_input_names": ["input_ids", "token_type_ids", "attention_mask"]},
    {"add_bos_token": True, "add_eos_token": True},
    {"mask_token": "@@"},
    {"mask_token": {"__type": "AddedToken", **_ADDED}},
    {"additional_special_tokens": ["@@", "<new>"]},
    {"extra_special_tokens": {"image_token": "<new>"}},
    {"added_tokens_decoder": {"1000": {**_ADDED, "special": True}}},
    {"added_tokens_decoder": {"1000": {**_ADDED, "special": False, "normalized": True}}},
    {"split_special_tokens": True},
    {"model_max_length": 1e30, "chat_template": "x", "unknown_key": 3},
)


@pytest.mark.parametrize("kind", _CLASSES)
@pytest.mark.parametrize("config", _CONFIGS, ids=json.dumps)
def test_equals_auto_tokenizer(tmp_path: Path, kind: str, config: dict[str, Any]) -> None:
    transformers = pytest.importorskip("transformers", reason="compares with transformers 5")
    if not transformers.__version__.startswith("5."):
        pytest.skip("compares with transformers 5")
    _save(tmp_path, kind)
    fields = {"tokenizer_class": _CLASSES[kind], **config}
    fields = {key: value for key, value in fields.items() if key != "tokenizer_class" or value is not None}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(fields))
    _assert_equal(transformers.AutoTokenizer.from_pretrained(tmp_path), tmp_path)


@pytest.mark.parametrize("kind", _CLASSES)
def test_equals_auto_tokenizer_with_older_files(tmp_path: Path, kind: str) -> None:
    transformers = pytest.importorskip("transformers", reason="compares with transformers 5")
    _save(tmp_path, kind)
    (tmp_path / "special_tokens_map.json").write_text(json.dumps({"mask_token": _ADDED, "pad_token": "@@"}))
    (tmp_path / "added_tokens.json").write_text(json.dumps({"naïve": 2000}))
    _assert_equal(transformers.AutoTokenizer.from_pretrained(tmp_path), tmp_path)


def _assert_equal(reference: Any, folder: Path) -> None:
    texts = _texts()
    assert len(texts) >= 200
    tokenizer = Tokenizer(folder / "tokenizer.json", limit=9)
    for inputs in (texts, list(zip(texts, reversed(texts), strict=True))):
        pairs = isinstance(inputs[0], tuple)
        for limit in (None, 9):
            arguments = [list(column) for column in zip(*inputs, strict=True)] if pairs else [inputs]
            expected = reference(
                *arguments,
                truncation=limit is not None,
                max_length=limit,
                return_offsets_mapping=True,
            )
            encodings = tokenizer.encodings(inputs, limit)
            assert [encoding.ids for encoding in encodings] == expected["input_ids"]
            assert [encoding.attention_mask for encoding in encodings] == expected["attention_mask"]
            assert ("token_type_ids" in tokenizer.settings.inputs) == ("token_type_ids" in expected)
            if "token_type_ids" in expected:
                assert [encoding.type_ids for encoding in encodings] == expected["token_type_ids"]
            if limit is None:
                offsets = [encoding.offsets for encoding in tokenizer.library.encode_batch(inputs)]
                assert offsets == expected["offset_mapping"]
    if reference.pad_token_id is not None:
        assert tokenizer.batch(tokenizer.encodings(["a", "a a a a a"], None))["input_ids"][0, -1] in (
            reference.pad_token_id,
            tokenizer.encodings(["a"], None)[0].ids[-1],
        )


def test_rejects_a_class_that_does_not_fit(tmp_path: Path) -> None:
    _save(tmp_path, "t5")
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "BertTokenizer"}))
    (tmp_path / "config.json").unlink()
    with pytest.raises((UnsupportedModel, InvalidModel), match="tokenizer_class='BertTokenizer'"):
        Tokenizer(tmp_path / "tokenizer.json")
