import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from isorun.system import json_files
from isorun.system.json_files import Limits

LIMITS = Limits(size=1 << 20, values=1000, depth=8)


@pytest.mark.parametrize("value", [None, [], {"a": [1, {"b": "[[[[[[[[["}]}, ["," * 100], "é", 3])
def test_reads_what_is_within_limits(tmp_path: Path, value: Any) -> None:
    path = tmp_path / "a.json"
    path.write_text(json.dumps(value, ensure_ascii=False), encoding="utf-8")
    assert json_files.read(path, LIMITS) == value
    assert json_files.parse(path.read_text(encoding="utf-8"), LIMITS) == value


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b" " * (1 << 20) + b"1", "at most 1048576 bytes, got 1048577"),
        (b"[" + b"0," * 1000 + b"0]", "at most 1000 values, got up to 1001"),
        (b"[" + b"[]," * 600 + b"0]", "at most 1000 values"),
        (b"[" * 9 + b"]" * 9, "more than 8 levels"),
        (b'{"a":' * 9, "more than 8 levels"),
        *((content, ".") for content in (b"", b"{", b"\xff", b'"\xed\xa0\x80"', b"1" * 10_000, b"[" * 400)),
    ],
)
def test_rejects_what_is_damaged_or_exceeds_a_limit(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=message):
        json_files.read(path, LIMITS)


def test_rejects_a_key_twice_unless_the_format_permits_it() -> None:
    text = '[{"a": 1, "b": {"c": 1, "d": 2, "c": 3}}]'
    with pytest.raises(json_files.DuplicateKey, match="duplicate key 'c'"):
        json_files.parse(text)
    assert json_files.parse(text, Limits(unique=False)) == [{"a": 1, "b": {"c": 3, "d": 2}}]


def test_files_of_isorun_may_be_deep_but_not_endless() -> None:
    assert json_files.parse("[" * 100 + "]" * 100)
    with pytest.raises(ValueError, match="nested too deeply"):
        json_files.parse("[" * 1_000_000)


def test_does_not_wait_for_a_pipe(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    start = time.monotonic()
    for name in ("pipe", "", "missing"):
        with pytest.raises(OSError, match=r"regular file|No such file"):
            json_files.read(tmp_path / name)
    assert time.monotonic() - start < 2
