import base64
import json
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from isorun.errors import InvalidModel
from isorun.models import tokenizer_file
from isorun.models.tokenizer import Tokenizer
from isorun.system import json_files


def _write(folder: Path, **parts: Any) -> Path:
    absent = dict.fromkeys(("truncation", "padding", "normalizer", "pre_tokenizer", "post_processor", "decoder"))
    model = {"type": "WordLevel", "vocab": {"[UNK]": 0, "a": 1}, "unk_token": "[UNK]"}
    path = folder / "tokenizer.json"
    path.write_text(json.dumps({"version": "1.0", **absent, "added_tokens": [], "model": model, **parts}))
    return path


def _character_map(trie: bytes, text: bytes = b"", size: int | None = None) -> dict[str, Any]:
    content = struct.pack("<I", len(trie) if size is None else size) + trie + text
    return {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(content).decode()}


@pytest.mark.parametrize(
    ("normalizer", "message"),
    [
        (_character_map(b"\0" * 8, size=2**32 - 4), "states a trie of 4294967292 bytes, but has 8"),
        (_character_map(b"\0" * 8, size=6), "states a trie of 6 bytes"),
        (_character_map(b""), "states a trie of 0 bytes"),
        (_character_map(b"\0" * 8, b"\xff\0"), "invalid UTF-8"),
        (_character_map(b"\0" * 8, b"x" * 1000), "replaces a character with 1000 bytes"),
        ({"type": "Precompiled", "precompiled_charsmap": "?"}, "is not base64"),
        ({"type": "Precompiled", "precompiled_charsmap": 3}, "must be a string, got int"),
        (
            {
                "type": "Sequence",
                "normalizers": [{"type": "Replace", "pattern": {"String": "a"}, "content": "a" * 10}] * 9,
            },
            r"1e\+09 times as long",
        ),
        ({"type": "Prepend", "prepend": "a" * 5000}, "5e.03 times as long"),
    ],
)
def test_rejects_a_normalizer_that_aborts_or_exhausts_memory(
    tmp_path: Path, normalizer: dict[str, Any], message: str
) -> None:
    path = _write(tmp_path, normalizer=normalizer)
    with pytest.raises(InvalidModel, match=f"damaged: .*{message}"):
        Tokenizer(path)


def test_rejects_deep_nesting(tmp_path: Path) -> None:
    normalizer: dict[str, Any] = {"type": "Lowercase"}
    for _ in range(40):
        normalizer = {"type": "Sequence", "normalizers": [normalizer]}
    with pytest.raises(InvalidModel, match="nested deeper than 32"):
        Tokenizer(_write(tmp_path, normalizer=normalizer))
    (tmp_path / "tokenizer.json").write_text("[" * 100_000)
    with pytest.raises(InvalidModel, match="cannot be read"):
        Tokenizer(tmp_path / "tokenizer.json")


def test_rejects_a_file_that_is_too_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = _write(tmp_path)
    monkeypatch.setattr(tokenizer_file, "LIMITS", json_files.Limits(size=100))
    with pytest.raises(InvalidModel, match="cannot be read: expected JSON of at most 100 bytes"):
        Tokenizer(path)


def test_rejects_a_post_processor_that_adds_many_tokens(tmp_path: Path) -> None:
    special = {"[CLS]": {"id": "[CLS]", "ids": [1] * 100, "tokens": ["a"] * 100}}
    pieces = [{"SpecialToken": {"id": "[CLS]", "type_id": 0}}] * 100
    processor = {"type": "TemplateProcessing", "single": pieces, "pair": [], "special_tokens": special}
    with pytest.raises(InvalidModel, match="adds 10000 tokens"):
        Tokenizer(_write(tmp_path, post_processor=processor))


def test_converts_panics(tmp_path: Path) -> None:
    """The class of panics cannot be imported, only recognized by name."""
    panic = type("PanicException", (BaseException,), {})
    with pytest.raises(InvalidModel, match="panics: index out of bounds"), tokenizer_file.guarded(tmp_path):
        raise panic("index out of bounds")
    with pytest.raises(KeyboardInterrupt), tokenizer_file.guarded(tmp_path):
        raise KeyboardInterrupt


_DAMAGE = """
import contextlib, json, os, random, sys
from pathlib import Path
from isorun.errors import IsorunError
from isorun.models.tokenizer import Tokenizer

Tokenizer(sys.argv[1]).encode(["a"])
os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # panics print traces
path, values = Path(sys.argv[1]), [None, -1, 2**32, 1e308, "", "x" * 99, [], {}, [None], True]
original, chosen = json.loads(path.read_text(encoding="utf-8")), random.Random(int(sys.argv[2]))
for _ in range(int(sys.argv[3])):
    document = json.loads(json.dumps(original))
    for _ in range(chosen.randint(1, 2)):
        node = document
        while True:
            keys = list(node) if isinstance(node, dict) else list(range(len(node)))
            key = chosen.choice(keys)
            if not (isinstance(node[key], (dict, list)) and node[key]) or chosen.random() < 0.2:
                break
            node = node[key]
        node[key] = chosen.choice(values)
    path.write_text(json.dumps(document))
    with contextlib.suppress(IsorunError):
        Tokenizer(path).encode(["a b c", ("Hello, World \\u00e9", "a" * 100)], 20)
"""


@pytest.mark.sampled(2)
@pytest.mark.parametrize("declared", ["", "BertTokenizer", "T5Tokenizer", "RobertaTokenizer"])
def test_survives_damaged_files(tmp_path: Path, declared: str) -> None:
    normalizers = [
        _character_map(b"\0" * 1024, "é\0e\0".encode()),
        {"type": "Strip", "strip_left": True, "strip_right": True},
    ]
    normalizers.append({"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "})
    special = {"a": {"id": "a", "ids": [1], "tokens": ["a"]}}
    metaspace = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}
    flags = dict.fromkeys(("normalized", "single_word", "lstrip", "rstrip"), False)
    words = {"unk_token": "[UNK]", "continuing_subword_prefix": "##", "max_input_chars_per_word": 100}
    pieces = [{"SpecialToken": {"id": "a", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]
    models: dict[str, dict[str, Any]] = {
        "BertTokenizer": {"type": "WordPiece", "vocab": {"[UNK]": 0, "a": 1, "[CLS]": 2, "[SEP]": 3}, **words},
        "RobertaTokenizer": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2, "<s>": 3, "</s>": 4}, "merges": ["a b"]},
    }
    unigram = {"type": "Unigram", "unk_id": 2, "vocab": [["<pad>", 0], ["</s>", 0], ["<unk>", 0], ["a", -1]]}
    path = _write(
        tmp_path,
        added_tokens=[{"id": 9, "content": "Hello", "special": True, **flags}],
        normalizer={"type": "Sequence", "normalizers": normalizers},
        pre_tokenizer={"type": "Sequence", "pretokenizers": [metaspace]},
        post_processor={"type": "TemplateProcessing", "single": pieces, "pair": pieces, "special_tokens": special},
        model=models.get(declared, unigram),
    )
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": declared} if declared else {}))
    result = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", _DAMAGE, str(path), "0", "500"], capture_output=True, check=False
    )
    assert result.returncode == 0, result.stderr.decode()[-2000:] or path.read_text(encoding="utf-8")
