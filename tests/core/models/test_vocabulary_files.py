"""Checkpoints without a tokenizer.json."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import isorun
import served
from isorun.errors import TokenizerError
from isorun.models.tokenizer import Tokenizer

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefgh", "##b", "##c", "hello", "é", "e", ",", "日"]
TEXTS = ["abc hello", "Hello, É", "xyz", "日a", " a  b ", ("a", "b")]


def word_pieces(folder: Path, config: dict[str, Any], **settings: Any) -> Path:
    folder.mkdir()
    (folder / "vocab.txt").write_text("\n".join(WORDS) + "\n", encoding="utf-8")
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


def as_file(folder: Path, copy: Path) -> Path:
    """The same with a tokenizer.json, which an author would publish."""
    from tokenizers import BertWordPieceTokenizer

    shutil.copytree(folder, copy)
    (copy / "vocab.txt").unlink()
    BertWordPieceTokenizer({word: number for number, word in enumerate(WORDS)}).save(str(copy / "tokenizer.json"))
    return copy


@pytest.mark.parametrize("settings", [{}, {"do_lower_case": False}, {"strip_accents": False}])
@pytest.mark.parametrize("kind", ["bert", "distilbert"])
def test_word_pieces_are_those_of_a_tokenizer_file(kind: str, settings: dict[str, Any], tmp_path: Path) -> None:
    folder = word_pieces(tmp_path / "old", {"model_type": kind}, **settings)
    own, converted = (Tokenizer.beside(place) for place in (folder, as_file(folder, tmp_path / "new")))
    for text in TEXTS:
        assert own.encodings([text], None)[0].ids == converted.encodings([text], None)[0].ids
    assert own.encode(TEXTS)["token_type_ids"].tolist() == converted.encode(TEXTS)["token_type_ids"].tolist()
    assert own.encodings(["abc"], None, offsets=True)[0].tokens == ["[CLS]", "a", "##b", "##c", "[SEP]"]


def test_white_space_after_a_word_is_not_part_of_it(tmp_path: Path) -> None:
    """The package tokenizers, and so transformers, reads words without it."""
    plain, spaced = (word_pieces(tmp_path / name, {"model_type": "bert"}) for name in ("plain", "spaced"))
    (spaced / "vocab.txt").write_text("".join(f"{word} \u00a0\t\n" for word in WORDS), encoding="utf-8")
    expected, encoded = (Tokenizer.beside(folder).encode(TEXTS)["input_ids"] for folder in (plain, spaced))
    assert encoded.tolist() == expected.tolist()


def byte_pairs(folder: Path, kind: str, **settings: Any) -> Path:
    words = ["<s>", "<pad>", "</s>", "<unk>", "<mask>", "h", "e", "l", "o", "Ġ", "he", "ll", "hell", "hello", "Ġhello"]
    (folder / "vocab.json").write_text(json.dumps({word: number for number, word in enumerate(words)}))
    (folder / "merges.txt").write_text("#version: 0.2\nh e\nl l\nhe ll\nhell o\nĠ hello\n", encoding="utf-8")
    (folder / "config.json").write_text(json.dumps({"model_type": kind}))
    if settings:
        (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


def test_byte_pairs(tmp_path: Path) -> None:
    encoding = Tokenizer.beside(byte_pairs(tmp_path, "roberta")).encodings(["hello hello"], None, offsets=True)[0]
    assert encoding.tokens == ["<s>", "hello", "Ġhello", "</s>"]


@pytest.mark.parametrize(
    ("flags", "single", "types"),
    [
        ({}, "hello", [0, 1]),
        ({"add_bos_token": True}, "<s> hello", [0, 0, 1, 1]),
        ({"add_eos_token": True}, "hello </s>", [0, 0, 1, 1]),
        ({"add_bos_token": True, "add_eos_token": True}, "<s> hello </s>", [0, 0, 0, 1, 1, 1]),
    ],
)
@pytest.mark.parametrize("kind", ["GPT2Tokenizer", "Qwen2Tokenizer", "GPTNeoXTokenizer"])
def test_ends_that_the_settings_add(
    kind: str, flags: dict[str, bool], single: str, types: list[int], tmp_path: Path
) -> None:
    """As transformers 5.24 adds them to a vocabulary, and not to a ``tokenizer.json``."""
    special = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    tokenizer = Tokenizer.beside(byte_pairs(tmp_path, "nomic_bert", tokenizer_class=kind, **special, **flags))
    text, pair = tokenizer.encodings(["hello", ("hello", "hello")], None, offsets=True)
    assert (text.tokens, pair.tokens) == (single.split(), single.split() * 2)
    assert pair.type_ids == types


def test_a_file_built_from_such_a_checkpoint_keeps_the_vocabulary(tmp_path: Path) -> None:
    folder = served.write_embedder(tmp_path / "embedder")
    vocabulary = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))["model"]["vocab"]
    (folder / "tokenizer.json").unlink()
    (folder / "vocab.txt").write_text("\n".join(sorted(vocabulary, key=vocabulary.__getitem__)))
    from isorun.models import checkpoint

    path = tmp_path / "built" / "m.onnx"
    path.parent.mkdir()
    checkpoint.build(folder, path)
    assert (path.parent / "m.vocab.txt").is_file()
    with isorun.Embedder(folder, backend="ort-cpu") as source, isorun.Embedder(path, backend="ort-cpu") as built:
        assert (source.embed(["a b"]) == built.embed(["a b"])).all()


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"spiece.model": b"\n\x07"}, "spiece.model.*save_pretrained"),
        ({"vocab.txt": b"a\nb"}, "does not say how texts are split.*tokenizer_config.json"),
        ({"vocab.txt": b"\xff\xfe", "config.json": b'{"model_type": "bert"}'}, "cannot be read"),
        (
            {"vocab.json": b"[]", "merges.txt": b"", "config.json": b'{"model_type": "roberta"}'},
            "must be an object of tokens",
        ),
        ({"vocab.json": b"{}"}, "has no tokenizer beside it"),
    ],
)
def test_what_cannot_be_read_says_what_to_do(files: dict[str, bytes], message: str, tmp_path: Path) -> None:
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    with pytest.raises(isorun.IsorunError, match=message) as caught:
        Tokenizer.beside(tmp_path)
    if "save_pretrained" in message or "split" in message:
        assert isinstance(caught.value, TokenizerError)


def test_tokens_are_decoded_as_the_class_does(tmp_path: Path) -> None:
    pieces = Tokenizer.beside(word_pieces(tmp_path / "bert", {"model_type": "bert"}))
    assert pieces.join(["a", "##b", "hello", ","]) == "ab hello,"
    assert pieces.decode([2, 5, 13, 15, 3], skip_special_tokens=True) == "ab hello"
    words = {word: number for number, word in enumerate(["<s>", "<pad>", "</s>", "<unk>", "<mask>", "Ġa", "b", "Ã©"])}
    folder = tmp_path / "roberta"
    folder.mkdir()
    (folder / "vocab.json").write_text(json.dumps(words))
    (folder / "merges.txt").write_text("#version: 0.2\n", encoding="utf-8")
    (folder / "config.json").write_text(json.dumps({"model_type": "roberta"}))
    assert Tokenizer.beside(folder).decode([0, 5, 6, 7, 2], skip_special_tokens=False) == "<s> abé</s>"


def test_a_class_that_is_built_has_its_own_decoder(tmp_path: Path) -> None:
    folder = as_file(word_pieces(tmp_path / "old", {"model_type": "bert"}), tmp_path / "new")
    path = folder / "tokenizer.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "decoder": None}))
    assert Tokenizer(path).join(["a", "##b"]) == "ab"
