"""What tests of the core share: the fused graph of all-MiniLM-L6-v2, and a tokenizer."""

from pathlib import Path

import pytest

from isorun.models import checkpoint
from isorun.system.cache import Cache


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
    library = Library(WordLevel({word: number for number, word in enumerate(words)}, unk_token="[UNK]"))
    library.pre_tokenizer = Whitespace()
    library.post_processor = BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    library.enable_padding(length=16)
    library.enable_truncation(4)
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    library.save(str(path))
    return path
