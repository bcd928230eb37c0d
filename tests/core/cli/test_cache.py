import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import small_bert
from isorun import Session
from isorun.system.cache import ENVIRONMENT_VARIABLE, Cache


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "cache"
    monkeypatch.setenv(ENVIRONMENT_VARIABLE, str(folder))
    return folder


_KINDS = {"built", "fingerprints"}


def test_empty_cache(isorun: Callable[..., Any], own_cache: Path) -> None:
    assert isorun("cache").out == f"{own_cache}\nempty\n"
    assert isorun("cache", "--json").json == {"folder": str(own_cache), "bytes": 0, "kinds": {}, "cleared": False}
    assert not own_cache.exists()


@pytest.mark.parametrize("arguments", [["--clear"], ["--limit", "1KB"], ["--remove", "0" * 64], ["--remove", "MODEL"]])
def test_removes_nothing_from_a_folder_that_is_not_a_cache(
    isorun: Callable[..., Any], own_cache: Path, bert: Path, arguments: list[str]
) -> None:
    project = own_cache / "projects" / "mine"
    project.mkdir(parents=True)
    (project / "entry.json").write_text("{}")
    before = sorted(own_cache.rglob("*"))
    ran = isorun("cache", *(str(bert) if argument == "MODEL" else argument for argument in arguments))
    assert ran.code == 2
    assert "Nothing was removed" in ran.err
    assert sorted(own_cache.rglob("*")) == before


def test_clear_reports_entries_in_use(isorun: Callable[..., Any], own_cache: Path) -> None:
    used = Cache()
    used.get_or_make("models", "key", lambda folder: {})
    ran = isorun("cache", "--clear")
    assert ran.code == 0
    assert "models/key: it is in use" in ran.err
    limited = isorun("cache", "--limit", "0B", "--json")
    assert (limited.code, limited.json["left"]) == (0, {"models/key": "it is in use"})
    assert isorun("cache", "--clear", "--json").json["left"] == {"models/key": "it is in use"}
    used.release()
    assert isorun("cache", "--clear", "--json").json["left"] == {}


def test_verify(isorun: Callable[..., Any], own_cache: Path) -> None:
    entry = Cache().get_or_make("lowered", "key", lambda folder: {"bytes": (folder / "payload").write_text("sound")})
    assert isorun("cache", "--verify").code == 0
    assert isorun("cache", "--verify", "--json").json["damaged"] == {}
    (entry.folder / "payload").write_text("wrong")
    ran = isorun("cache", "--verify")
    assert ran.code == 1
    assert "damaged: lowered/key: " in ran.out
    assert set(isorun("cache", "--verify", "--json").json["damaged"]) == {"lowered/key"}
    assert isorun("cache", "--verify", "--clear").code == 2


def test_show_and_clear(isorun: Callable[..., Any], own_cache: Path, checkpoint: Path) -> None:
    assert isorun("inspect", checkpoint).code == 0
    listed = isorun("cache", "--json").json
    assert set(listed["kinds"]) == _KINDS
    assert listed["kinds"]["built"]["entries"] == 1
    assert listed["bytes"] == sum(kind["bytes"] for kind in listed["kinds"].values()) > 10_000
    assert "built" in isorun("cache").out

    (own_cache / "notes").mkdir()
    (own_cache / "notes" / "mine.txt").write_text("not the cache's")
    assert isorun("cache", "--clear").out.startswith(f"{own_cache}\ncleared, ")
    assert isorun("cache", "--json").json["kinds"] == {}
    assert (own_cache / "notes" / "mine.txt").exists()
    assert isorun("inspect", checkpoint).code == 0


def test_remove_and_limit(isorun: Callable[..., Any], own_cache: Path, bert: Path, tmp_path: Path) -> None:
    removable = small_bert.write(tmp_path / "other.onnx", hidden_size=32, intermediate_size=64)
    for arguments in ({}, {"outputs": ["pooler_output"]}, {"precision": "int8"}):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            Session(removable, "ort-cpu", **arguments).close()
    with Session(bert, "ort-cpu") as kept:
        fingerprint = kept.provenance.fingerprint
    removed = isorun("cache", "--remove", removable, "--json").json
    kinds = Counter(name.partition("/")[0] for name in removed["removed"])
    assert kinds == {"models": 2, "lowered": 1, "calibrated": 1, "fingerprints": 1}
    left = isorun("cache", "--json").json["kinds"]
    assert {kind: use["entries"] for kind, use in left.items()} == {"models": 1, "lowered": 1, "fingerprints": 1}
    assert "removed 3 entries" in isorun("cache", "--remove", fingerprint).out
    Session(bert, "ort-cpu").close()
    assert isorun("cache", "--limit", "1kB", "--json").json["left"] == {}
    assert set(isorun("cache", "--json").json["kinds"]) == {"fingerprints"}
    assert "expected a size" in isorun("cache", "--limit", "x").err


def test_remove_a_checkpoint(isorun: Callable[..., Any], own_cache: Path, checkpoint: Path) -> None:
    Session(checkpoint, "ort-cpu").close()
    isorun("cache", "--remove", checkpoint)
    assert isorun("cache", "--json").json["kinds"] == {}
