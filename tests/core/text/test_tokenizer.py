"""The public tokenizer: tokens, their places, and the feeds of a session."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers

import isorun
import served
from isorun.text import Tokenizer

TEXTS = ["a b c", ("a b", "c  d"), "", "zz e"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return served.write_embedder(tmp_path_factory.mktemp("tokens") / "embedder")


def test_tokens_have_the_places_of_their_characters_and_words(folder: Path) -> None:
    texts = Tokenizer(folder).encode(TEXTS)
    assert len(texts) == 4
    for text, tokens in zip(TEXTS, texts, strict=True):
        parts = text if isinstance(text, tuple) else (text,)
        words = [(part, word) for part, whole in enumerate(parts) for word in whole.split()]
        real = [token for token in tokens if not token.is_special]
        assert [(token.part, parts[token.part or 0][token.start : token.end]) for token in real] == words
        assert [token.word for token in real] == [number for whole in parts for number, _ in enumerate(whole.split())]
        assert next(token.text for token in tokens if token.is_special) == "[CLS]"
    assert texts[:2] == [texts[0], texts[1]]
    assert texts[3][1].text == "[UNK]"


def test_feeds_are_those_of_the_sessions_model(folder: Path) -> None:
    with isorun.Session(folder, "ort-cpu") as session, isorun.Embedder(folder, backend="ort-cpu") as embedder:
        tokenizer = Tokenizer(session)
        feeds = tokenizer.encode(["a b c", "d"]).feeds(session)
        assert {name: feed.dtype for name, feed in feeds.items()} == {
            spec.name: spec.dtype for spec in session.get_inputs()
        }
        (hidden, *_) = session.run(None, feeds)
        mask = feeds["attention_mask"][..., None]
        means = (hidden * mask).sum(1) / mask.sum(1)
        vectors = means / np.linalg.norm(means, axis=1, keepdims=True)
        np.testing.assert_allclose(vectors, embedder.embed(["a b c", "d"]), atol=1e-6)
        assert tokenizer.max_length == embedder.max_length


@pytest.mark.parametrize("value", ["8", [8], 8.5, True, 0])
def test_the_maximum_length_is_a_whole_number(folder: Path, value: Any) -> None:
    with pytest.raises(isorun.InvalidArgument, match="max_length"):
        Tokenizer(folder, max_length=value)


@pytest.mark.parametrize("value", ["yes", 1, None])
def test_special_tokens_are_added_or_not(folder: Path, value: Any) -> None:
    with pytest.raises(isorun.InvalidType, match="special_tokens must be True or False"):
        Tokenizer(folder, special_tokens=value)


@pytest.mark.parametrize(("cleans", "text"), [(True, "a b, c isn't d."), (False, "a b , c is n't d ."), (None, None)])
def test_decoded_texts_have_the_spaces_that_the_settings_want(
    tmp_path: Path, cleans: bool | None, text: str | None
) -> None:
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcd", "is", "n't", ",", "."]
    library = tokenizers.Tokenizer(tokenizers.models.WordLevel({word: at for at, word in enumerate(words)}, "[UNK]"))
    library.save(str(tmp_path / "tokenizer.json"))
    fields = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": cleans}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(fields))
    ids = [words.index(word) for word in ["a", "b", ",", "c", "is", "n't", "d", "."]]
    assert Tokenizer(tmp_path).decode(ids) == (text or "a b , c is n't d .")


def test_long_texts_are_cut_with_a_warning(folder: Path) -> None:
    tokenizer = Tokenizer(folder, max_length=4)
    with pytest.warns(isorun.TruncationWarning, match="more than 4 tokens"):
        texts = tokenizer.encode(["a", "a b c d"])
    assert texts.truncated == [1]
    assert [len(tokens) for tokens in texts] == [3, 4]
    assert tokenizer.count("a b c d") == 6
    assert [len(tokens) for tokens in Tokenizer(folder, special_tokens=False).encode(["a b"])] == [2]


def test_decodes(folder: Path) -> None:
    tokenizer = Tokenizer(folder)
    ids = [token.id for token in tokenizer.encode(["a b"])[0]]
    assert (tokenizer.decode(ids), tokenizer.decode(ids, skip_special_tokens=False)) == ("a b", "[CLS] a b [SEP]")
    assert tokenizer.decode(np.array(ids, np.uint16)) == "a b"
    assert tokenizer.special_tokens["mask_token"] == "[MASK]"


@pytest.mark.parametrize("ids", [[-100, 5], [2**40], ["a"], [[2, 5]], np.array([[2, 5]]), [1.5], 3])
def test_rejects_what_is_no_list_of_token_ids(ids: Any, folder: Path) -> None:
    with pytest.raises(isorun.InvalidFeeds, match="ids must be a list of token ids"):
        Tokenizer(folder).decode(ids)


def test_wrong_arguments(folder: Path) -> None:
    with pytest.raises(isorun.InvalidArgument, match="max_length"):
        Tokenizer(folder, max_length=0)
    with pytest.raises(isorun.InvalidFeeds, match="Text 1"):
        Tokenizer(folder).encode(["a", 3])  # type: ignore[list-item]  # what is tested
    with pytest.raises(isorun.InvalidType, match=r"session must be an isorun\.Session, got str"):
        Tokenizer(folder).encode(["a"]).feeds("model")  # type: ignore[arg-type]  # what is tested


def test_a_file_that_isorun_built_keeps_its_settings(folder: Path, tmp_path: Path) -> None:
    from isorun.models import checkpoint

    path = tmp_path / "m.onnx"
    checkpoint.build(folder, path)
    assert Tokenizer(path).max_length == Tokenizer(folder).max_length
    assert Tokenizer(path).encode(["a b"])[0] == Tokenizer(folder).encode(["a b"])[0]
