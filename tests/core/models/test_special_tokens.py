"""Special tokens that several files and keys name. The ids were recorded with transformers 5.24.0."""

from __future__ import annotations

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


@pytest.mark.parametrize("key", ["extra_special_tokens", "model_specific_special_tokens"])
def test_rejects_tokens_in_another_form(tmp_path: Path, key: str) -> None:
    with pytest.raises(UnsupportedModel, match=f"{key}='<x1>': expected "):
        Tokenizer.beside(write(tmp_path, {"tokenizer_config": GENERIC | {key: "<x1>"}}))
