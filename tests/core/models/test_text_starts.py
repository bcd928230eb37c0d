"""Long texts have the tokens that they have when they are tokenized in full."""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, models, normalizers, pre_tokenizers, processors, trainers
from tokenizers import Tokenizer as Library

from isorun.models import text_starts
from isorun.models import tokenizer as models_tokenizer
from isorun.models.text_starts import CHARACTERS, Starts
from isorun.models.tokenizer import Tokenizer, TruncationWarning

_QWEN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|"
    r"\s+(?!\S)|\s+"
)
_CORPUS = [
    "the quick brown fox jumps over the lazy dog, and it's 12 o'clock.",
    "Straße naïve café été 1,5 kg; a_b-c/d!",
    "中文字符测试 日本語のテスト 한국어 문장",
    "один два три четыре. हिन्दी में पाठ",
    "a b c d e f g h i j k l m n o p q r s t u v w x y z",
] * 4
_SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def _word_pieces() -> Library:
    library = Library(models.WordPiece(unk_token="[UNK]"))
    library.normalizer = normalizers.BertNormalizer()
    library.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return _trained(library, trainers.WordPieceTrainer(vocab_size=250, special_tokens=_SPECIAL, show_progress=False))


def _byte_pairs(*splits: Any) -> Library:
    library = Library(models.BPE())
    library.pre_tokenizer = pre_tokenizers.Sequence(list(splits))
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    options: dict[str, Any] = {"special_tokens": _SPECIAL, "initial_alphabet": alphabet, "show_progress": False}
    return _trained(library, trainers.BpeTrainer(vocab_size=400, **options))


def _without_splits() -> Library:
    library = Library(models.BPE(unk_token="[UNK]", fuse_unk=True))
    library.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never")
    _trained(library, trainers.BpeTrainer(vocab_size=250, special_tokens=_SPECIAL, show_progress=False))
    library.normalizer = normalizers.Replace(" ", "▁")
    library.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    return library


def _unigrams(*steps: Any, split: bool = True, across: bool = False) -> Library:
    library = Library(models.Unigram())
    library.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=not across)
    options: dict[str, Any] = {"special_tokens": _SPECIAL, "unk_token": "[UNK]", "show_progress": False}
    _trained(library, trainers.UnigramTrainer(vocab_size=200, **options))
    library.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=split)
    library.normalizer = normalizers.Sequence(list(steps))
    return library


def _trained(library: Library, trainer: Any) -> Library:
    library.train_from_iterator(_CORPUS, trainer)
    return library


_ALBERT = (
    *(normalizers.Replace("``", '"'), normalizers.Replace("''", '"'), normalizers.NFKD(), normalizers.StripAccents()),
    *(normalizers.Lowercase(), normalizers.Replace(Regex(" {2,}"), " ")),
)
_DEBERTA = (normalizers.Replace(Regex(r"\s{2,}|[\n\r\t]"), " "), normalizers.NFC(), normalizers.Strip(left=False))
_KINDS: dict[str, Callable[[], Library]] = {
    "wordpiece": _word_pieces,
    "bpe": lambda: _byte_pairs(pre_tokenizers.ByteLevel(add_prefix_space=True)),
    "bpe of qwen": lambda: _byte_pairs(
        pre_tokenizers.Split(Regex(_QWEN), "isolated"), pre_tokenizers.ByteLevel(use_regex=False)
    ),
    "bpe without splits": _without_splits,
    "unigram": lambda: _unigrams(*_ALBERT),
    "unigram of deberta": lambda: _unigrams(*_DEBERTA),
    "unigram without splits": lambda: _unigrams(split=False),
    "unigram across words": lambda: _unigrams(split=False, across=True),
}
_ADDED: dict[str, list[AddedToken]] = {
    "none": [],
    "mask": [AddedToken("<mask>", lstrip=True, normalized=False), AddedToken("Fox,", normalized=True)],
    "spaces": [AddedToken("   ", normalized=False), AddedToken("  ", normalized=False)],
    "word": [AddedToken("dog", single_word=True), AddedToken("@@", rstrip=True)],
    "phrase": [AddedToken("the quick", normalized=True)],
    "chinese": [AddedToken("a中文", normalized=False)],
}

_SNIPPETS = st.sampled_from(
    [
        *("the", "quick", "fox", "jumps", "dog", "it's", "WE'LL", "12", "3.14", "a_b-c/d", "Straße", "e\u0301", "été"),
        *(
            "中文字符",
            "日本語",
            "한국어",
            "один",
            "हिन्दी",
            "\u0d4e",
            "🙂👍🏽",
            "ﬁ½①",
            "\ufdfa",
            "İ",
            "``x''",
            "...",
            "!?",
        ),
        *(
            "<mask>",
            "[MASK]",
            "[CLS]",
            "Fox,",
            "fox,",
            "@@",
            "a中文",
            "the quick",
            "▁",
            "▁▁",
            "Ġ",
            "##s",
            "x" * 130,
            "xq" * 40,
        ),
        *(
            ",",
            ".",
            ";",
            "\n",
            "\n\n",
            "\t",
            "\r\n",
            "  ",
            "   ",
            "\u3000",
            "\u00a0",
            "\u200d",
            "\u0301",
            "\x00",
            "\u0600",
        ),
    ]
)


def _texts(repeats: list[int]) -> st.SearchStrategy[str]:
    return st.builds(
        lambda parts, separator, repeat: separator.join(parts) * repeat,
        st.lists(_SNIPPETS, min_size=1, max_size=40),
        st.sampled_from(["", " ", " ", "\n", ", "]),
        st.sampled_from(repeats),
    )


@cache
def _file(kind: str) -> str:
    return str(_KINDS[kind]().to_str())


def _open(kind: str, added: str, folder: Path) -> tuple[Tokenizer, Library]:
    """The tokenizer, and the library with the same file."""
    path = folder / f"{kind} {added}.json"
    if path.is_file():
        return _opened(path)
    library = Library.from_str(_file(kind))
    library.add_tokens(_ADDED[added])
    first, last = (("[CLS]", library.token_to_id("[CLS]")), ("[SEP]", library.token_to_id("[SEP]")))
    library.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[first, last]
    )
    library.save(str(path))
    return _opened(path)


@cache
def _opened(path: Path) -> tuple[Tokenizer, Library]:
    return Tokenizer(path), Library.from_file(str(path))


def _assert_equal(tokenizer: Tokenizer, library: Library, texts: list[Any], limit: int) -> None:
    library.enable_truncation(limit)
    expected = library.encode_batch(texts)
    for encodings in (tokenizer.encodings(texts, limit), tokenizer.encodings(texts, limit, offsets=True)):
        assert [encoding.ids for encoding in encodings] == [encoding.ids for encoding in expected]
        assert [encoding.type_ids for encoding in encodings] == [encoding.type_ids for encoding in expected]
        assert [bool(encoding.overflowing) for encoding in encodings] == [
            bool(encoding.overflowing) for encoding in expected
        ]
    assert [encoding.offsets for encoding in encodings] == [encoding.offsets for encoding in expected]
    assert [encoding.word_ids for encoding in encodings] == [encoding.word_ids for encoding in expected]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("kind", _KINDS)
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_long_text_has_the_tokens_of_the_whole(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch, kind: str, data: st.DataObject
) -> None:
    monkeypatch.setattr(text_starts, "CHARACTERS", 1)  # so that tokens near the cut are read
    monkeypatch.setattr(models_tokenizer, "CHARACTERS", 1)
    added = data.draw(st.sampled_from(list(_ADDED)))
    tokenizer, library = _open(kind, added, tmp_path_factory.getbasetemp())
    texts: list[Any] = data.draw(st.lists(_texts([1, 1, 4]), min_size=1, max_size=3))
    limit = data.draw(st.integers(3, 14))
    if data.draw(st.booleans()):  # the library makes all combinations of the parts that it cuts off
        texts, limit = (
            list(zip(texts[:1], data.draw(st.lists(_texts([1]), min_size=1, max_size=1)), strict=True)),
            limit + 9,
        )
    _assert_equal(tokenizer, library, texts, limit)


@pytest.mark.parametrize("kind", _KINDS)
def test_a_long_text_is_read_only_as_far_as_needed(tmp_path: Path, kind: str) -> None:
    _, library = _open(kind, "mask", tmp_path)
    text = "the quick brown fox jumps over the lazy dog, " * 100
    start = Starts(library).of(text, 80)
    if kind == "unigram across words":
        assert start == text
    else:
        assert text.startswith(start)
        assert 80 <= len(start) < 90


@pytest.mark.parametrize(("kind", "length"), [("wordpiece", 20), ("unigram", 2000)])
def test_a_text_without_white_space_is_cut_where_the_tokenizer_splits_it(
    tmp_path: Path, kind: str, length: int
) -> None:
    _, library = _open(kind, "mask", tmp_path)
    for text in ("中" * 2000, "a,b." * 500):
        assert len(Starts(library).of(text, 20)) == pytest.approx(length, abs=4)


@pytest.mark.parametrize("added", ["phrase", "spaces"])
def test_an_added_token_is_not_cut(tmp_path: Path, added: str) -> None:
    _, library = _open("wordpiece", added, tmp_path)
    text = "the quick " * 100
    assert (Starts(library).of(text, 20) == text) == (added == "phrase")


def test_unknown_steps_get_whole_texts(tmp_path: Path) -> None:
    _, library = _open("wordpiece", "none", tmp_path)
    text = "the quick " * 100
    for splits in (pre_tokenizers.UnicodeScripts(), pre_tokenizers.Split(Regex(r"\w+(?=.*dog)"), "isolated")):
        library.pre_tokenizer = splits
        assert Starts(library).of(text, 20) == text
    library.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    library.normalizer = normalizers.Replace(Regex("a.*b"), "c")
    assert Starts(library).of(text, 20) == text


@pytest.mark.parametrize("length", [500, pytest.param(501, marks=pytest.mark.long)])
def test_the_longer_text_of_a_pair_is_known(tmp_path: Path, length: int) -> None:
    tokenizer, library = _open("wordpiece", "none", tmp_path)
    long, longer = "a " * length, "b " * (length + 1)
    pairs = [(long, longer), (longer, long), (long, long), (long, "a"), ("a", longer), (long, "a " * 9)]
    for limit in (13, 14):
        _assert_equal(tokenizer, library, pairs, limit)


@pytest.mark.parametrize("kind", ["wordpiece", "bpe"])
def test_a_pair_of_two_texts_without_spaces_makes_few_windows(tmp_path: Path, kind: str) -> None:
    """Of Chinese, each character is a token, and nothing but the end of the text is sure to end one."""
    tokenizer, library = _open(kind, "none", tmp_path)
    long, longer = "中文字符测试" * 40, "日本語のテスト" * 40
    pairs = [(long, longer), (longer, long), (long, long), (long, f"{long}中"), (long, "a")]
    for limit in (13, 14):
        _assert_equal(tokenizer, library, pairs, limit)
        assert max(len(encoding.overflowing) for encoding in tokenizer.encodings(pairs[:4], limit)) < 600


def test_the_warning_has_no_number_for_a_text_that_is_not_read_to_its_end(tmp_path: Path) -> None:
    tokenizer, _ = _open("wordpiece", "none", tmp_path)
    with pytest.warns(TruncationWarning, match=r"text 0 \(7 tokens\), text 2$"):
        tokenizer.encode(["a b c d e", "a", "a " * 1000], 5)
    assert CHARACTERS * 5 < 1000
