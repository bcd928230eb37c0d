"""Tiny checkpoints of each task, with a tokenizer of the letters, and applications that serve them."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fastapi.testclient import TestClient

import isorun
import tiny
from isorun_serve.app import create_app
from isorun_serve.models import Models, Served
from isorun_serve.settings import Settings

LETTERS = "abcdefghijklmnopqrstuvwxyz"
LABELS = ["bad", "fair", "good"]


def write_embedder(folder: Path) -> Path:
    """A checkpoint of vectors of length 1, the mean of 32 values."""
    tiny.write_checkpoint(folder)
    modules = [
        {"type": f"sentence_transformers.models.{kind}", "path": path}
        for kind, path in (("Transformer", ""), ("Pooling", "1_Pooling"), ("Normalize", "2_Normalize"))
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode": "mean"}))
    prompts = {"prompts": {"query": "q "}}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(prompts))
    return _with_tokenizer(folder)


def write_reranker(folder: Path) -> Path:
    """A checkpoint with one class."""
    return _write_head(folder, 1, ["LABEL_0"])


def write_classifier(folder: Path) -> Path:
    """A checkpoint with three classes."""
    return _write_head(folder, 3, LABELS)


def _write_head(folder: Path, count: int, labels: list[str]) -> Path:
    weights = tiny.weights(head="sequence")
    for part in ("weight", "bias"):
        weights[f"classifier.{part}"] = weights[f"classifier.{part}"][:count]
    encoder = {f"bert.{name}": tensor for name, tensor in weights.items() if not name.startswith("classifier")}
    head = {name: tensor for name, tensor in weights.items() if name.startswith("classifier")}
    names = {str(index): label for index, label in enumerate(labels)}
    architectures = ["BertForSequenceClassification"]
    tiny.write_checkpoint(folder, {**encoder, **head}, architectures=architectures, id2label=names)
    return _with_tokenizer(folder)


def _with_tokenizer(folder: Path) -> Path:
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace
    from tokenizers.processors import BertProcessing

    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *LETTERS]
    tokenizer = Tokenizer(WordLevel({word: number for number, word in enumerate(words)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.post_processor = BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


@contextmanager
def client(
    models: dict[str, Any], *, ready: bool = True, accepting: bool = True, **settings: Any
) -> Iterator[TestClient]:
    """A client of an application for open models, which stay open."""
    served = Models([_shared(Served.of(name, model)) for name, model in models.items()])
    app = create_app(served, Settings(**{"warmup": False, **settings}))
    with TestClient(app, raise_server_exceptions=False) as opened:
        served.accepting, served.ready = accepting, ready
        yield opened


def _shared(served: Served) -> Served:
    return Served(served.name, served.task, served.model, served.session, lambda: None)


def open_all(folders: dict[str, Path]) -> dict[str, Any]:
    """A model of each task, by name."""
    kinds: dict[str, Any] = {
        "embedder": isorun.Embedder,
        "reranker": isorun.CrossEncoder,
        "classifier": isorun.Classifier,
    }
    return {name: kinds[name](folder, backend="ort-cpu") for name, folder in folders.items()}
