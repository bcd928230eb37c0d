import json
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

import programs
from isorun.errors import InvalidFeeds, InvalidModel, IsorunError
from isorun.models.tokenizer import Tokenizer, TruncationWarning

_PAD, _UNKNOWN, _CLS, _SEP, _A, _MAN, _EATS, _BREAD = range(8)


def test_a_batch_is_padded_on_the_right_to_its_longest_text(tokenizer: Path) -> None:
    encoded = Tokenizer(tokenizer).encode(["a man eats bread", "man"])
    np.testing.assert_array_equal(
        encoded["input_ids"], [[_CLS, _A, _MAN, _EATS, _BREAD, _SEP], [_CLS, _MAN, _SEP, _PAD, _PAD, _PAD]]
    )
    np.testing.assert_array_equal(encoded["attention_mask"], [[1] * 6, [1, 1, 1, 0, 0, 0]])
    np.testing.assert_array_equal(encoded["token_type_ids"], np.zeros((2, 6)))
    assert {array.dtype for array in encoded.values()} == {np.dtype(np.int64)}


def test_a_pair_has_two_kinds_of_token(tokenizer: Path) -> None:
    encoded = Tokenizer(tokenizer).encode([("a man", "eats"), "bread"])
    np.testing.assert_array_equal(encoded["input_ids"][0], [_CLS, _A, _MAN, _SEP, _EATS, _SEP])
    np.testing.assert_array_equal(encoded["token_type_ids"], [[0, 0, 0, 0, 1, 1], [0] * 6])


def test_length_pads_and_truncates(tokenizer: Path) -> None:
    assert Tokenizer(tokenizer).encode(["man"], length=9)["input_ids"].shape == (1, 9)
    with pytest.warns(TruncationWarning, match=r"maximum of 3 tokens: text 1 \(6 tokens\)") as caught:
        encoded = Tokenizer(tokenizer).encode(["man", "a man eats bread"], length=3)
    assert {warning.filename for warning in caught} == {__file__}
    np.testing.assert_array_equal(encoded["input_ids"], [[_CLS, _MAN, _SEP], [_CLS, _A, _SEP]])


def test_warns_of_truncation_to_the_limit(tokenizer: Path) -> None:
    tokenizer = Tokenizer(tokenizer, limit=5)
    with pytest.warns(TruncationWarning, match=r"text 0 \(8 tokens\), text 2 \(6 tokens\)"):
        encoded = tokenizer.encode(["a man eats a man eats", "man", "a man eats bread"])
    assert encoded["input_ids"].shape == (3, 5)
    assert tokenizer.encode(["a man eats"])["input_ids"].shape == (1, 5)  # what just fits is no warning
    with pytest.warns(TruncationWarning, match="maximum of 5 tokens"):
        wider = tokenizer.encode(["a man eats bread"], length=7)
    assert wider["attention_mask"].tolist() == [[1, 1, 1, 1, 1, 0, 0]]


@pytest.mark.parametrize(
    ("texts", "length", "message"),
    [
        ([], None, "at least one text"),
        ("one", None, "list of at least one"),
        ([1], None, "Text 0 .*1"),
        ([("a", "b", "c")], None, "tuple of two"),
        (["a", ("b",)], None, "Text 1 "),
        ([()], None, "tuple of two"),
        (["a", ("b", "\udcff")], None, "Text 1 .*surrogate"),
        (["a"], 0, "at least 1"),
        (["a"], 2, "special tokens"),
    ],
)
def test_rejects_invalid_texts(tokenizer: Path, texts: list[str], length: int | None, message: str) -> None:
    with pytest.raises(InvalidFeeds, match=message):
        Tokenizer(tokenizer, limit=5).encode(texts, length)


@pytest.mark.parametrize("place", ["m.tokenizer.json", "tokenizer.json", "../tokenizer.json"])
def test_the_tokenizer_is_found_beside_a_model(tokenizer: Path, tmp_path: Path, place: str) -> None:
    folder = tmp_path / "onnx"
    folder.mkdir()
    (folder / place).write_bytes(tokenizer.read_bytes())
    assert Tokenizer.beside(folder / "m.onnx").path.samefile(folder / place)


def test_the_models_own_tokenizer_comes_before_the_folders(tokenizer: Path, tmp_path: Path) -> None:
    for name in ("m.tokenizer.json", "tokenizer.json"):
        (tmp_path / name).write_bytes(tokenizer.read_bytes())
    assert Tokenizer.beside(tmp_path / "m.onnx").path.name == "m.tokenizer.json"
    assert Tokenizer.beside(tmp_path).path.name == "tokenizer.json"


def test_reports_where_a_missing_tokenizer_was_expected(tmp_path: Path) -> None:
    with pytest.raises(InvalidModel, match=r"m\.tokenizer\.json.*tokenizer\.json"):
        Tokenizer.beside(tmp_path / "m.onnx")


def test_rejects_a_damaged_tokenizer(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps({"version": "1.0"}))
    with pytest.raises(InvalidModel, match=r"tokenizer\.json is not a tokenizer"):
        Tokenizer(path)
    with pytest.raises(InvalidModel, match="There is no tokenizer"):
        Tokenizer(tmp_path / "other.json")


def test_threads_with_different_limits_do_not_disturb_each_other(tokenizer: Path) -> None:
    shared, text = Tokenizer(tokenizer), "a man eats bread " * 200
    limits = [None, *range(3, 28)]  # more than are kept
    expected = {limit: 802 if limit is None else limit for limit in limits}
    differing: list[tuple[int | None, int]] = []

    def work(offset: int) -> None:
        for step in range(150):
            limit = limits[(step * (offset + 1)) % len(limits)]
            count = len(shared.encodings([text], limit)[0].ids)
            if count != expected[limit]:
                differing.append((limit, count))

    threads = [threading.Thread(target=work, args=(offset,)) for offset in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not differing


def test_changing_the_exposed_library_does_not_change_encodings(tokenizer: Path) -> None:
    shared = Tokenizer(tokenizer)
    shared.encodings(["a man"], None)
    shared.library.enable_truncation(1)
    assert len(shared.encodings(["a man"], None)[0].ids) == 4


def test_without_the_package_the_message_says_what_to_install(tokenizer: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(IsorunError, match=r"pip install 'isorun\[graph\]'"):
        Tokenizer(tokenizer)


def test_tokenizers_is_imported_only_when_used() -> None:
    programs.printed("import sys, isorun.models.tokenizer; sys.exit('tokenizers' in sys.modules)")
