"""Special tokens that several files and keys name. The ids were recorded with transformers 5.24.0."""

import json
from pathlib import Path
from typing import Any

import pytest

from isorun.errors import UnsupportedModel
from isorun.models.tokenizer import Tokenizer

WORDS = ["[UNK]", "hello", "world", "a", "b", "[CLS]", "[SEP]", "<pad>", "<x1>", "<x2>"]
GENERIC = {"tokenizer_class": "PreTrainedTokenizerFast"}
LIST = {"additional_special_tokens": ["<x1>", "<n1>"]}
NAMED = {"extra_special_tokens": {"image_token": "<x2>", "box_token": "<n2>"}}
TEXTS = ("a<x1>b", "<x2>a", "<n1> <n2>", "<pad>a")


def write(folder: Path, files: dict[str, Any], *, pads: bool = False) -> Path:
    """A tokenizer whose ``tokenizer.json`` has no added tokens, and the files beside it."""
    from tokenizers import Tokenizer as Library
    from tokenizers import models, pre_tokenizers

    library = Library(models.WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="[UNK]"))
    library.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    if pads:
        library.enable_padding(pad_id=7, pad_token="<pad>")
    library.save(str(folder / "tokenizer.json"))
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    return folder


def ids(tokenizer: Tokenizer) -> list[list[int]]:
    return [list(tokenizer.encodings([text], None)[0].ids) for text in TEXTS]


PLAIN = [[0], [0], [0, 0], [0]]  # "<pad>a" is a word
BY_LIST = [[3, 8, 4], [0], [10, 0], [0]]
BY_NAME = [[0], [9, 3], [0, 10], [0]]
BOTH = [[3, 8, 4], [9, 3], [11, 10], [0]]


@pytest.mark.parametrize(
    ("config", "special_tokens_map", "expected"),
    [
        (None, None, PLAIN),
        ({}, None, PLAIN),
        (None, LIST, BY_LIST),
        (LIST, None, BY_LIST),
        (NAMED, None, BY_NAME),
        (GENERIC | LIST, None, BY_LIST),
        (GENERIC | LIST | NAMED, None, BOTH),
        (GENERIC | NAMED | LIST, None, BOTH),
        (LIST | NAMED, None, BOTH),
        (GENERIC | LIST, NAMED, BY_NAME),
        (GENERIC | NAMED, LIST, BOTH),
        (GENERIC | LIST | {"extra_special_tokens": []}, None, BY_LIST),
        (GENERIC | LIST | {"extra_special_tokens": {}}, None, BY_LIST),
        (GENERIC | LIST | {"extra_special_tokens": ["<x2>"]}, None, [[0], [9, 3], [0, 0], [0]]),
        (
            GENERIC | {"extra_special_tokens": ["<x2>"]},
            {"extra_special_tokens": ["<x1>"]},
            [[3, 8, 4], [9, 3], [0, 0], [0]],
        ),
        (GENERIC | {"model_specific_special_tokens": NAMED["extra_special_tokens"]}, None, BY_NAME),
        (GENERIC | {"image_token": "<x2>"}, {"box_token": "<n2>"}, [[0], [9, 3], [0, 10], [0]]),
    ],
)
def test_tokens_of_several_keys(
    tmp_path: Path, config: Any, special_tokens_map: Any, expected: list[list[int]]
) -> None:
    files = {"tokenizer_config": config, "special_tokens_map": special_tokens_map}
    folder = write(tmp_path, {name: content for name, content in files.items() if content is not None})
    assert ids(Tokenizer.beside(folder)) == expected


@pytest.mark.parametrize("config", [None, {}, GENERIC, {"pad_token": "<pad>"}])
def test_padding_that_only_tokenizer_json_states(tmp_path: Path, config: Any) -> None:
    folder = write(tmp_path, {} if config is None else {"tokenizer_config": config}, pads=True)
    tokenizer = Tokenizer.beside(folder)
    assert tokenizer.special_tokens == {"pad_token": "<pad>"}
    assert ids(tokenizer)[-1] == [7, 3]
    assert tokenizer.encode(["", "a b"])["input_ids"].tolist() == [[7, 7], [3, 4]]


def test_padding_that_is_switched_off(tmp_path: Path) -> None:
    tokenizer = Tokenizer.beside(write(tmp_path, {"tokenizer_config": GENERIC | {"pad_token": None}}, pads=True))
    assert (tokenizer.special_tokens, ids(tokenizer)[-1]) == ({}, [0])


QWEN = {"tokenizer_class": "Qwen2Tokenizer", "eos_token": "<x1>", "unk_token": None, "bos_token": None}
T5 = {"tokenizer_class": "T5Tokenizer", "extra_ids": 2}
CAMEMBERT = {"tokenizer_class": "CamembertTokenizer"}


def build(folder: Path, config: dict[str, Any], beside: dict[str, Any]) -> Tokenizer:
    """A tokenizer of a class that is built from the vocabulary, and the files beside ``tokenizer.json``."""
    words = ["<s>", "<pad>", "</s>", "<unk>", "<x1>", "<|endoftext|>", "a", "[CLS]", "[SEP]", "[PAD]", "[UNK]"]
    model: dict[str, Any] = {"type": "Unigram", "vocab": [[word, -1.0] for word in words], "unk_id": 3}
    if config is QWEN:
        model = {"type": "BPE", "vocab": {word: number for number, word in enumerate(words)}, "merges": []}
    for name, content in {"tokenizer": {"model": model}, "tokenizer_config": config, **beside}.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    return Tokenizer.beside(folder)


def test_a_token_that_is_null_is_missing(tmp_path: Path) -> None:
    tokenizer = build(tmp_path, QWEN, {})
    assert tokenizer.special_tokens == {"eos_token": "<x1>", "pad_token": "<|endoftext|>"}
    assert [list(encoding.ids) for encoding in tokenizer.encodings(["a<x1>", "<unk>"], None)] == [[6, 4], []]


def added(tokenizer: Tokenizer) -> list[str]:
    return [token.content for token in tokenizer.library.get_added_tokens_decoder().values()]


@pytest.mark.parametrize(
    ("config", "special_tokens_map", "expected"),
    [
        (T5, {}, ["<extra_id_0>", "<extra_id_1>"]),
        (T5 | {"additional_special_tokens": ["<n1>"]}, {}, ["<n1>"]),
        (T5 | {"additional_special_tokens": []}, {}, []),
        (T5 | {"additional_special_tokens": None}, {}, []),
        (T5, LIST, ["<x1>", "<n1>", "<extra_id_0>", "<extra_id_1>"]),
        (T5, {"additional_special_tokens": ["<extra_id_1>", "<extra_id_0>"]}, ["<extra_id_1>", "<extra_id_0>"]),
        (CAMEMBERT, {}, ["<mask>", "<s>NOTUSED", "</s>NOTUSED", "<unk>NOTUSED"]),
        (CAMEMBERT, LIST, ["<x1>", "<mask>", "<n1>"]),
        (CAMEMBERT | {"additional_special_tokens": []}, LIST, ["<mask>"]),
    ],
)
def test_tokens_that_a_class_adds(
    tmp_path: Path, config: dict[str, Any], special_tokens_map: dict[str, Any], expected: list[str]
) -> None:
    tokenizer = build(tmp_path, config, {"special_tokens_map": special_tokens_map})
    assert [text for text in added(tokenizer) if text not in ("<s>", "</s>", "<pad>", "<unk>")] == expected


def test_tokens_that_a_class_names(tmp_path: Path) -> None:
    folder = write(tmp_path, {"tokenizer_config": {"tokenizer_class": "SplinterTokenizer", "unk_token": "[UNK]"}})
    document = json.loads((folder / "tokenizer.json").read_text())
    document["model"] = {**document["model"], "type": "WordPiece", "continuing_subword_prefix": "##"}
    document["model"]["max_input_chars_per_word"] = 100
    document["normalizer"] = {
        "type": "BertNormalizer",
        **dict.fromkeys(("clean_text", "handle_chinese_chars", "lowercase"), True),
        "strip_accents": None,
    }
    document["pre_tokenizer"] = {"type": "BertPreTokenizer"}
    document["post_processor"] = {"type": "BertProcessing", "sep": ["[SEP]", 6], "cls": ["[CLS]", 5]}
    (folder / "tokenizer.json").write_text(json.dumps(document))
    tokens = added(Tokenizer.beside(folder))
    assert tokens == ["[UNK]", "[CLS]", "[SEP]", "[PAD]", "[MASK]", "[QUESTION]"]


def test_an_added_token_is_special_by_the_merged_files(tmp_path: Path) -> None:
    files = {
        "tokenizer_config": GENERIC | {"mask_token": "<n1>"},
        "special_tokens_map": {"mask_token": "<x1>", "sep_token": {"content": "<n2>"}},
        "added_tokens": {"<n1>": 10, "<n2>": 11, "<x1>": 8},
    }
    tokenizer = Tokenizer.beside(write(tmp_path, files))
    special = {token.content: token.special for token in tokenizer.library.get_added_tokens_decoder().values()}
    assert special == {"<x1>": True, "<n1>": False, "<n2>": True}
    assert tokenizer.decode([3, 10, 11, 8], skip_special_tokens=True) == "a <n1>"


@pytest.mark.parametrize("key", ["extra_special_tokens", "model_specific_special_tokens"])
def test_rejects_tokens_in_another_form(tmp_path: Path, key: str) -> None:
    with pytest.raises(UnsupportedModel, match=f"{key}='<x1>': expected "):
        Tokenizer.beside(write(tmp_path, {"tokenizer_config": GENERIC | {key: "<x1>"}}))


def test_a_name_makes_an_added_token_special(tmp_path: Path) -> None:
    """Such as one that was added first, and named later. Recorded like the ids."""
    write(tmp_path, {"tokenizer_config": GENERIC | {"sep_token": "<x1>"}})
    document = json.loads((tmp_path / "tokenizer.json").read_text())
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized", "special"), False)
    document["added_tokens"] = [{"id": 8, "content": "<x1>", **flags}, {"id": 9, "content": "<x2>", **flags}]
    (tmp_path / "tokenizer.json").write_text(json.dumps(document))
    tokenizer = Tokenizer.beside(tmp_path)
    assert tokenizer.decode([3, 8, 4, 9], skip_special_tokens=True) == "a b <x2>"
