from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from isorun.system.cache import ENVIRONMENT_VARIABLE


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "cache"
    monkeypatch.setenv(ENVIRONMENT_VARIABLE, str(folder))
    return folder


_KINDS = {"built", "fingerprints"}


def test_an_empty_cache(isorun: Callable[..., Any], own_cache: Path) -> None:
    assert isorun("cache").out == f"{own_cache}\nempty\n"
    assert isorun("cache", "--json").json == {"folder": str(own_cache), "bytes": 0, "kinds": {}, "cleared": False}
    assert not own_cache.exists()


def test_clearing_leaves_other_files(isorun: Callable[..., Any], own_cache: Path) -> None:
    for kind in ("fingerprints", "entry-points", "models"):
        (own_cache / kind).mkdir(parents=True, exist_ok=True)
        (own_cache / kind / "mine.txt").write_text("not the cache's")
    assert isorun("cache", "--clear").code == 0
    assert len(list(own_cache.rglob("mine.txt"))) == 3


def test_what_is_in_it_and_clearing_it(isorun: Callable[..., Any], own_cache: Path, checkpoint: Path) -> None:
    assert isorun("inspect", checkpoint).code == 0
    listed = isorun("cache", "--json").json
    assert _KINDS <= set(listed["kinds"]) <= {*_KINDS, "entry-points"}
    assert listed["kinds"]["built"]["entries"] == 1
    assert listed["bytes"] == sum(kind["bytes"] for kind in listed["kinds"].values()) > 10_000
    assert "built" in isorun("cache").out

    (own_cache / "notes").mkdir()
    (own_cache / "notes" / "mine.txt").write_text("not the cache's")
    assert isorun("cache", "--clear").out.startswith(f"{own_cache}\ncleared, ")
    assert isorun("cache", "--json").json["kinds"] == {}
    assert (own_cache / "notes" / "mine.txt").exists()
    assert isorun("inspect", checkpoint).code == 0
