import json
from pathlib import Path
from typing import Any

import pytest

import tiny
from isorun.errors import InvalidModel, UnsupportedModel
from isorun.models import tokenizer_config
from isorun.models.tokenizer import Tokenizer, TruncationWarning

_WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefgh", *"ABCDEFGH"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a cased BERT tokenizer."""
    from tokenizers import Tokenizer as Library
    from tokenizers import models, normalizers, pre_tokenizers, processors

    library = Library(models.WordPiece({word: number for number, word in enumerate(_WORDS)}, unk_token="[UNK]"))
    library.normalizer = normalizers.BertNormalizer(lowercase=False)
    library.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    library.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    library.add_special_tokens(_WORDS[:5])
    library.save(str(tmp_path / "tokenizer.json"))
    return tmp_path


def _configure(folder: Path, name: str = "tokenizer_config.json", **fields: Any) -> Path:
    (folder / name).write_text(json.dumps(fields))
    return folder / "tokenizer.json"


def _tokens(path: Path, text: str) -> list[str]:
    tokenizer = Tokenizer(path)
    return [tokenizer.library.id_to_token(number) for number in tokenizer.encodings([text], None)[0].ids]


def test_a_class_applies_its_settings(folder: Path) -> None:
    kept = ["[CLS]", "A", "b", "[SEP]"]
    assert _tokens(folder / "tokenizer.json", "A b") == kept  # no class is named: the file as it is
    assert _tokens(_configure(folder, tokenizer_class="BertTokenizer", do_lower_case=False), "A b") == kept
    assert _tokens(_configure(folder, tokenizer_class="BertTokenizer"), "A b") == ["[CLS]", "a", "b", "[SEP]"]
    assert _tokens(_configure(folder, tokenizer_class="PreTrainedTokenizerFast", do_lower_case=True), "A b") == kept


def test_accents_follow_their_setting(folder: Path) -> None:
    path = _configure(folder, tokenizer_class="BertTokenizerFast", do_lower_case=False, strip_accents=True)
    assert _tokens(path, "á") == ["[CLS]", "a", "[SEP]"]
    path = _configure(folder, tokenizer_class="BertTokenizerFast", strip_accents=False)
    assert _tokens(path, "á") == ["[CLS]", "[UNK]", "[SEP]"]


@pytest.mark.parametrize(
    ("model_type", "declared", "expected"),
    [
        ("bert", None, "BertTokenizer"),
        ("bert", "PreTrainedTokenizerFast", "TokenizersBackend"),
        ("bert", "DistilBertTokenizerFast", "DistilBertTokenizer"),
        ("bert", "NoSuchTokenizer", "TokenizersBackend"),
        ("electra", "ElectraTokenizer", "BertTokenizer"),
        ("modernbert", "PreTrainedTokenizerFast", "TokenizersBackend"),
        ("qwen2", "PreTrainedTokenizerFast", "Qwen2Tokenizer"),
        ("mistral", "LlamaTokenizer", "TokenizersBackend"),
        ("new", "XLMRobertaTokenizerFast", "XLMRobertaTokenizer"),
        (None, "BertTokenizer", "BertTokenizer"),
        (None, None, None),
    ],
)
def test_the_class_is_auto_tokenizers(tmp_path: Path, model_type: Any, declared: Any, expected: Any) -> None:
    _configure(tmp_path, tokenizer_class=declared)
    _configure(tmp_path, "config.json", model_type=model_type)
    assert tokenizer_config.read(tmp_path).kind == expected


def test_generic_classes_make_no_token_types(tmp_path: Path) -> None:
    for declared, typed in (("BertTokenizer", True), ("PreTrainedTokenizerFast", False), ("RobertaTokenizer", False)):
        _configure(tmp_path, tokenizer_class=declared)
        assert ("token_type_ids" in tokenizer_config.read(tmp_path).inputs) == typed
    _configure(tmp_path, tokenizer_class="BertTokenizer", model_input_names=["input_ids", "attention_mask"])
    assert tokenizer_config.read(tmp_path).inputs == ("input_ids", "attention_mask")


def test_token_types_are_zero_where_the_class_makes_none(folder: Path) -> None:
    for declared, second in (("BertTokenizer", 1), ("TokenizersBackend", 0)):
        encoded = Tokenizer(_configure(folder, tokenizer_class=declared)).encode([("a", "b")])
        assert encoded["token_type_ids"].tolist() == [[0, 0, 0, second, second]]


def test_truncates_on_the_stated_side(folder: Path) -> None:
    path = _configure(folder, truncation_side="left", tokenizer_class="BertTokenizer")
    (encoding,) = Tokenizer(path).encodings(["a b c d"], 4)
    assert encoding.ids == [2, 7, 8, 3]


def test_adds_tokens_that_only_the_configuration_names(folder: Path) -> None:
    path = _configure(folder, tokenizer_class="BertTokenizer", additional_special_tokens=["[NEW]"])
    (encoding,) = Tokenizer(path).encodings(["a [NEW] b"], None)
    assert encoding.ids == [2, 5, len(_WORDS), 6, 3]
    path = _configure(folder, "special_tokens_map.json", sep_token="h", cls_token={"content": "g"})
    _configure(folder, tokenizer_class="BertTokenizer")
    assert _tokens(path, "a") == ["g", "a", "h"]


def test_counts_a_prompts_tokens_without_assuming_an_end(folder: Path) -> None:
    path = _configure(folder, tokenizer_class="BertTokenizer")
    assert Tokenizer(path).leading_tokens("a b", None) == 3
    assert Tokenizer(_configure(folder)).leading_tokens("a b", None) == 3
    tiny.edit(path, post_processor=None)
    assert Tokenizer(path).leading_tokens("a b", None) == 2
    assert Tokenizer(path).leading_tokens("", None) == 0


@pytest.mark.parametrize("value", [None, 1e30, float("inf"), 2**80])
def test_a_huge_limit_is_none(tmp_path: Path, value: Any) -> None:
    _configure(tmp_path, model_max_length=value)
    assert tokenizer_config.read(tmp_path).limit is None


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *(("model_max_length", value) for value in ("512", 0, -1, float("-inf"), float("nan"), True, [])),
        *(("truncation_side", value) for value in ("middle", None, 3, {})),
        *(("do_lower_case", value) for value in ("yes", 1, {})),
        *(("model_input_names", value) for value in ("input_ids", [1], {}, None)),
        *(("added_tokens_decoder", value) for value in ([], None, "x")),
        *(("cls_token", value) for value in (3, {}, {"content": 1}, [])),
        ("tokenizer_class", 3),
        ("extra_ids", float("inf")),
    ],
)
def test_rejects_a_value_of_another_type(tmp_path: Path, key: str, value: Any) -> None:
    _configure(tmp_path, **{key: value})
    with pytest.raises(InvalidModel, match=rf"tokenizer_config\.json: {key} must be "):
        tokenizer_config.read(tmp_path)


def test_rejects_what_it_cannot_apply(folder: Path) -> None:
    cases: list[tuple[str, dict[str, Any]]] = [
        ("tokenizer_class='BertJapaneseTokenizer'", {"tokenizer_class": "BertJapaneseTokenizer"}),
        ("tokenizer_class='T5Tokenizer'.*needs a model of type Unigram", {"tokenizer_class": "T5Tokenizer"}),
        ("tokenizer_class='GPT2Tokenizer'.*needs a model of type BPE", {"tokenizer_class": "GPT2Tokenizer"}),
        ("auto_map=.*code of the checkpoint", {"auto_map": {"AutoTokenizer": ["a.B", None]}}),
        ("do_lower_case=True.*contradicts", {"tokenizer_class": "FunnelTokenizer", "do_lower_case": True}),
        ("tokenizer_class='RemBertTokenizer'.*PreTrainedTokenizerFast", {"tokenizer_class": "RemBertTokenizer"}),
        ("tokenizer_class='WhisperTokenizer'.*vocabulary alone", {"tokenizer_class": "WhisperTokenizer"}),
        (
            "tokenize_chinese_chars=False.*contradicts",
            {"tokenizer_class": "ConvBertTokenizer", "tokenize_chinese_chars": False},
        ),
        ("sep_token=None.*needs this token", {"tokenizer_class": "BertTokenizer", "sep_token": None}),
    ]
    for message, fields in cases:
        with pytest.raises(UnsupportedModel, match=message):
            Tokenizer(_configure(folder, **fields))


@pytest.mark.parametrize(
    ("config", "shifted"),
    [
        *(
            ({"model_type": kind}, True)
            for kind in ("bert", "distilbert", "electra", "deberta-v2", "deberta", "rembert")
        ),
        *(({"model_type": kind, "position_biased_input": False}, False) for kind in ("deberta-v2", "deberta")),
        ({"model_type": "bert", "position_embedding_type": "alibi"}, False),
        ({"model_type": "bert", "position_embedding_type": "absolute"}, True),
        *(({"model_type": kind}, False) for kind in ("t5", "qwen3", "modernbert", "gpt2", None, ["bert"])),
        ({"model_type": "mpnet", "pad_token_id": 0}, True),  # its positions skip token 1 whatever the config states
        ({"model_type": "roberta"}, True),
        ({"model_type": "roberta", "pad_token_id": 0}, False),
        ({}, False),
    ],
)
def test_rejects_padding_that_would_shift_the_positions(folder: Path, config: dict[str, Any], shifted: bool) -> None:
    """The tokenizer pads with token 0."""
    _configure(folder, "config.json", **config)
    path = _configure(folder, tokenizer_class="PreTrainedTokenizerFast", padding_side="left", pad_token="[PAD]")
    if shifted:
        with pytest.raises(UnsupportedModel, match=r"padding_side='left'.*shift the positions"):
            Tokenizer(path)
    else:
        assert Tokenizer(path).settings.padding_side == "left"


@pytest.mark.parametrize(
    ("fields", "tokens"),
    [
        ({"tokenizer_class": "LlamaTokenizer"}, ["▁a", "<s>", "a"]),
        ({"tokenizer_class": "LlamaTokenizerFast", "legacy": True}, ["▁a", "<s>", "▁a"]),
        ({"tokenizer_class": "LlamaTokenizer", "add_prefix_space": False}, ["▁a", "<s>", "a"]),
        ({"tokenizer_class": "PreTrainedTokenizerFast"}, ["▁", "▁a", "<s>", "▁a"]),
    ],
)
def test_llama_adds_a_space_where_its_class_does(tmp_path: Path, fields: dict[str, Any], tokens: list[str]) -> None:
    """The tokens of transformers 5.24 for a file as its version 4 wrote them."""
    from tokenizers import Tokenizer as Library
    from tokenizers import models, normalizers

    vocabulary = {token: number for number, token in enumerate(("<unk>", "<s>", "</s>", "▁", "a", "▁a"))}
    library = Library(models.BPE(vocabulary, [("▁", "a")], unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    library.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    library.add_special_tokens(["<unk>", "<s>", "</s>"])
    library.save(str(tmp_path / "tokenizer.json"))
    special = {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>", "pad_token": "</s>"}
    tokenizer = Tokenizer(_configure(tmp_path, **special, **fields))
    assert tokenizer.library.encode(" a<s>a").tokens == tokens


def _byte_pairs(folder: Path, declared: str, *, digits: bool = False) -> Path:
    """A folder with a byte-level vocabulary."""
    from tokenizers import Tokenizer as Library
    from tokenizers import decoders, models, pre_tokenizers, processors

    words = [
        "<|endoftext|>",
        "[CLS]",
        "[SEP]",
        "[PAD]",
        "[UNK]",
        "[MASK]",
        "<|padding|>",
        "Ġ",
        "a",
        "1",
        "2",
        "Ġa",
        "12",
    ]
    vocabulary = {word: number for number, word in enumerate(words)}
    library = Library(models.BPE(vocabulary, [("Ġ", "a"), ("1", "2")]))
    splits = [pre_tokenizers.Digits(individual_digits=True)] if digits else []
    library.pre_tokenizer = pre_tokenizers.Sequence([*splits, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    library.post_processor = processors.ByteLevel(trim_offsets=False)
    library.decoder = decoders.ByteLevel()
    library.save(str(folder / "tokenizer.json"))
    return _configure(folder, tokenizer_class=declared)


def test_llama_s_class_leaves_a_byte_level_file_as_it_is(tmp_path: Path) -> None:
    """Files of Llama 3 name the class of Llama 2: transformers 5.24 does not build it."""
    assert _tokens(_byte_pairs(tmp_path, "LlamaTokenizer"), "a a") == ["a", "Ġa"]
    assert "token_type_ids" not in Tokenizer(tmp_path / "tokenizer.json").settings.inputs


def test_llama_s_class_pads_on_the_left(tmp_path: Path) -> None:
    path = tiny.edit(_byte_pairs(tmp_path, "LlamaTokenizer"), post_processor=None, decoder=None, pre_tokenizer=None)
    settings = Tokenizer(path).settings
    assert settings.padding_side == "left"
    assert str(settings.unsupported("padding_side", "x")) == "LlamaTokenizer has padding_side='left': x"
    assert (
        Tokenizer(_configure(tmp_path, tokenizer_class="LlamaTokenizer", padding_side="right")).settings.padding_side
        == "right"
    )
    assert Tokenizer(_byte_pairs(tmp_path, "LlamaTokenizer")).settings.padding_side == "right"  # built as it is


@pytest.mark.parametrize(
    ("declared", "tokens"),
    [
        ("PreTrainedTokenizerFast", ["1", "2"]),
        ("GPT2Tokenizer", ["12"]),
        ("GPTNeoXTokenizerFast", ["12"]),
        ("DebertaTokenizer", ["[CLS]", "12", "[SEP]"]),
    ],
)
def test_byte_level_classes_ignore_the_file_s_splits(tmp_path: Path, declared: str, tokens: list[str]) -> None:
    assert _tokens(_byte_pairs(tmp_path, declared, digits=True), "12") == tokens


def test_deberta_separates_a_pair_twice(tmp_path: Path) -> None:
    (encoding,) = Tokenizer(_byte_pairs(tmp_path, "DebertaTokenizer")).encodings([("a", "12")], None)
    assert encoding.ids == [1, 8, 2, 2, 12, 2]
    assert encoding.type_ids == [0] * 6


def test_rejects_a_file_that_the_class_would_not_build(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModel, match=r"BPE \+ ByteLevel.*PreTrainedTokenizerFast"):
        Tokenizer(_byte_pairs(tmp_path, "CodeGenTokenizer", digits=True))
    path = _byte_pairs(tmp_path, "CodeGenTokenizer")
    assert _tokens(path, "a a") == ["a", "Ġa"]
    tiny.edit(path, post_processor=None)
    with pytest.raises(UnsupportedModel, match="CodeGenTokenizer has a post_processor"):
        Tokenizer(path)


def _unigrams(folder: Path, kind: str, **fields: Any) -> Path:
    """A folder with a SentencePiece vocabulary."""
    from tokenizers import Tokenizer as Library
    from tokenizers import models

    pieces = ["<pad>", "</s>", "<unk>", "<s>", "<mask>", "[CLS]", "[SEP]", "[PAD]", "[UNK]", "[MASK]"]
    vocabulary = [*((piece, 0.0) for piece in pieces), ("▁", -1.0), ("a", -1.0)]
    Library(models.Unigram(vocabulary, unk_id=2)).save(str(folder / "tokenizer.json"))
    return _configure(folder, tokenizer_class=kind, **fields)


def test_deberta_s_unknown_token_is_the_stated_one(tmp_path: Path) -> None:
    unknown = [Tokenizer(_unigrams(tmp_path, "DebertaV2Tokenizer", unk_token="a", unk_id=number)) for number in (2, 4)]
    ids = [tokenizer.encodings(["中"], None)[0].ids for tokenizer in unknown]
    assert (ids[0][-2], ids[1][-2]) == (2, 4)
    with pytest.raises(InvalidModel, match=r"unk_id must be an integer .*got -1"):
        Tokenizer(_unigrams(tmp_path, "DebertaV2Tokenizer", unk_id=-1))


def test_a_mask_that_is_only_named_takes_the_space_before_it(tmp_path: Path) -> None:
    path = _unigrams(tmp_path, "CamembertTokenizer", mask_token="@@", added_tokens_decoder={})
    (encoding,) = Tokenizer(path).library.encode_batch(["a @@"])
    assert (1, 4) in encoding.offsets


def test_mpnet_s_mask_has_its_flag_by_any_name(folder: Path) -> None:
    names = {"bos_token": "[CLS]", "eos_token": "[SEP]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    names |= {"unk_token": "[UNK]", "pad_token": "[PAD]", "mask_token": "H"}
    path = _configure(folder, tokenizer_class="MPNetTokenizer", added_tokens_decoder={}, **names)
    tokens = Tokenizer(path).library.get_added_tokens_decoder().values()
    assert [token.lstrip for token in tokens if token.content == "H"] == [True]


@pytest.mark.parametrize("names", [["input_ids"], ["attention_mask", "token_type_ids"]])
def test_rejects_inputs_without_a_mask(folder: Path, names: list[str]) -> None:
    with pytest.raises(UnsupportedModel, match="must contain input_ids and attention_mask"):
        Tokenizer(_configure(folder, model_input_names=names))


def test_sides_that_the_file_states(folder: Path) -> None:
    """transformers takes them where tokenizer_config.json states none."""
    cut = {"direction": "Left", "max_length": 6, "strategy": "LongestFirst", "stride": 0}
    padded = {"strategy": "BatchLongest", "direction": "Left", "pad_to_multiple_of": None}
    token = {"pad_id": 0, "pad_type_id": 0, "pad_token": "[PAD]"}
    path = tiny.edit(folder / "tokenizer.json", truncation=cut)
    with pytest.warns(TruncationWarning):
        assert Tokenizer(path).encode(["a b c d e"], 4)["input_ids"].tolist() == [[2, 8, 9, 3]]
    _configure(folder, truncation_side="right")
    with pytest.warns(TruncationWarning):
        assert Tokenizer(path).encode(["a b c d e"], 4)["input_ids"].tolist() == [[2, 5, 6, 3]]
    del cut["direction"]  # as older files
    _configure(folder)
    assert Tokenizer(tiny.edit(path, truncation=cut)).settings.truncation_side == "right"
    _configure(folder, "config.json", model_type="bert")
    with pytest.raises(UnsupportedModel, match=r"^tokenizer.json has padding_side='left'"):
        Tokenizer(tiny.edit(folder / "tokenizer.json", padding={**padded, **token}))
    _configure(folder, padding_side="right")
    assert Tokenizer(path).settings.padding_side == "right"


def test_pairs_have_two_types_without_a_post_processor(folder: Path) -> None:
    tokenizer = Tokenizer(tiny.edit(folder / "tokenizer.json", post_processor=None))
    for offsets in (False, True):
        (encoding,) = tokenizer.encodings([("a b", "c")], None, offsets=offsets)
        assert encoding.type_ids == [0, 0, 1]


def test_rejects_a_file_that_differs_from_the_defaults_of_a_class(folder: Path, tmp_path_factory: Any) -> None:
    with pytest.raises(UnsupportedModel, match=r"do_lower_case=None.*contradicts"):  # the file keeps capitals
        Tokenizer(_configure(folder, tokenizer_class="SplinterTokenizer"))
    with pytest.raises(UnsupportedModel, match=r"add_prefix_space=None.*contradicts"):
        Tokenizer(_byte_pairs(tmp_path_factory.mktemp("bytes"), "BlenderbotTokenizer"))


def test_classes_of_another_name(folder: Path) -> None:
    path = _configure(folder, tokenizer_class="LayoutLMTokenizer")
    assert _tokens(path, "A b") == ["[CLS]", "a", "b", "[SEP]"]
    assert "token_type_ids" in Tokenizer(path).settings.inputs


def test_extra_special_tokens_are_those_of_the_configuration(folder: Path) -> None:
    path = _configure(folder, tokenizer_class="BertTokenizer", additional_special_tokens=["<new>"])
    _configure(folder, "special_tokens_map.json", additional_special_tokens=["<other>"])
    assert _tokens(path, "<new>") == ["[CLS]", "<new>", "[SEP]"]
    assert _tokens(path, "<other>") != ["[CLS]", "<other>", "[SEP]"]
