"""Vectors of tokens as a MultiVectorEncoder of sentence-transformers gives them."""

import asyncio
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import exports
import isorun
import tiny
from archives import unpack
from isorun.errors import InvalidArgument, InvalidModel, UnsupportedModel
from isorun.models import checkpoint
from isorun.models.tokenizer import TruncationWarning

NAMES = ("fixed", "attend", "min", "plain", "pylate", "stanford")
TASKS = {"query": "query", "document": "document", "all": None}
pytestmark = pytest.mark.filterwarnings("ignore::isorun.models.tokenizer.TruncationWarning")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tiny models, each with what sentence-transformers answers: ``make_multi_vector.py``."""
    return unpack("multi-vector", tmp_path_factory.mktemp("multi-vector"))


@pytest.fixture(scope="module")
def texts(models: Path) -> list[str]:
    listed: list[str] = json.loads((models / "texts.json").read_text(encoding="utf-8"))
    return listed


def _check(actual: list[Any], expected: Any, key: str, order: Any = None) -> None:
    for row, position in zip(actual, range(len(actual)) if order is None else order, strict=True):
        np.testing.assert_allclose(row, expected[f"{key}.{position}"], atol=1e-5)
        assert row.dtype == np.float32


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", NAMES)
def test_vectors_and_scores(name: str, models: Path, texts: list[str]) -> None:
    expected = np.load(models / name / "expected.npz")
    order = np.random.default_rng(0).permutation(len(texts))
    with isorun.MultiVectorEmbedder(models / name, backend="ort-cpu") as embedder:
        for key, task in TASKS.items():
            _check(embedder.embed(texts, task=task), expected, key)
            _check(embedder.embed([texts[position] for position in order], task=task), expected, key, order)
            _check([embedder.embed([text], task=task)[0] for text in texts], expected, key)
            _check(embedder.embed(embedder.encode(texts, task=task)), expected, key)
            _check(asyncio.run(embedder.aembed(texts, task=task)), expected, key)
        queries, documents = embedder.embed(texts[:3], task="query"), embedder.embed(texts, task="document")
        scores = embedder.score(queries, documents)
        np.testing.assert_allclose(scores, expected["scores"], atol=1e-4)
        assert embedder.dimension == documents[0].shape[1]
        ranked = embedder.rank(texts[0], texts, top_k=3)
        assert [document.position for document in ranked] == np.argsort(-scores[0], kind="stable")[:3].tolist()
        assert ranked[0].text == texts[ranked[0].position]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", NAMES)
def test_vectors_of_a_built_file(name: str, models: Path, texts: list[str], tmp_path: Path) -> None:
    expected = np.load(models / name / "expected.npz")
    checkpoint.build(models / name, tmp_path / "model.onnx")
    with isorun.MultiVectorEmbedder(tmp_path / "model.onnx", backend="openvino") as embedder:
        for key, task in TASKS.items():
            _check(embedder.embed(texts, task=task), expected, key)


def test_warm_up_with_texts(models: Path, texts: list[str]) -> None:
    with isorun.MultiVectorEmbedder(models / "fixed", backend="ort-cpu") as embedder:
        embedder.warmup(texts)
        assert len(embedder.feeds(embedder.tokens(texts))["input_ids"]) == len(texts)
        (vectors,) = embedder.embed(embedder.encode_ids([[2, 100, 101, 3]]))
        assert vectors.shape == (4, embedder.dimension)


def test_lengths_of_the_caller(models: Path, texts: list[str]) -> None:
    with isorun.MultiVectorEmbedder(
        models / "fixed", query_length=20, document_length=9, backend="ort-cpu"
    ) as embedder:
        assert {len(row) for row in embedder.embed(texts, task="query")} == {20}
        assert embedder.encode(texts, task="document").lengths == [
            min(9, embedder.count_tokens(f"[D] {text}")) for text in texts
        ]
        with pytest.warns(TruncationWarning, match="9"):
            embedder.embed(texts, task="document")


@pytest.mark.filterwarnings("ignore::isorun.models.tokenizer.TruncationWarning")
@pytest.mark.parametrize("name", ["plain", "fixed", "min"])
def test_the_maximum_length_holds_for_queries_and_documents(name: str, models: Path) -> None:
    long = "bread eats man " * 20
    with isorun.MultiVectorEmbedder(models / name, max_length=8, backend="ort-cpu") as embedder:
        for task in ("query", "document", None):
            assert embedder.encode([long], task=task).lengths == [8]
            assert max(embedder.encode(["a"], task=task).lengths) <= 8
    with isorun.MultiVectorEmbedder(models / name, query_length=6, backend="ort-cpu") as embedder:
        assert embedder.encode([long], task="query").lengths == [6]
        embedder.limit_length(5)
        assert embedder.encode([long], task="document").lengths == [5]
    for argument in ("query_length", "document_length"):
        with pytest.raises(InvalidArgument, match=f"{argument} must be at most"):
            isorun.MultiVectorEmbedder(models / name, backend="ort-cpu", **{argument: 5000})
        with pytest.raises(InvalidArgument, match=f"{argument} must exceed the 2 special tokens"):
            isorun.MultiVectorEmbedder(models / name, backend="ort-cpu", **{argument: 2})


@pytest.mark.parametrize("padding", ["remove", "auto"])
def test_padding_stays_where_it_is_computed(padding: str, models: Path) -> None:
    with pytest.raises(InvalidArgument, match="padding"):
        isorun.MultiVectorEmbedder(models / "fixed", padding=padding, backend="ort-cpu")
    with isorun.MultiVectorEmbedder(models / "attend", padding=padding, backend="ort-cpu") as embedder:
        assert embedder.dimension == 4


def test_rejects_other_tasks_and_prompts(models: Path) -> None:
    with isorun.MultiVectorEmbedder(models / "fixed", backend="ort-cpu") as embedder:
        with pytest.raises(InvalidArgument, match="task"):
            embedder.embed(["a"], task="passage")
        with pytest.raises(InvalidArgument, match="no effect"):
            embedder.embed(embedder.encode(["a"]), task="query")
        with pytest.raises(InvalidArgument, match=r"documents\[0\]"):
            embedder.score(embedder.embed(["a"]), [np.zeros((0, 4), np.float32)])
        with pytest.raises(InvalidArgument, match="one dimension"):
            embedder.score(embedder.embed(["a"]), [np.zeros((2, 3), np.float32)])
        assert embedder.embed([]) == []
        assert asyncio.run(embedder.aembed([], task="query")) == []


def test_names_the_class_for_another_kind_of_model(models: Path, retrieval: Path) -> None:
    with pytest.raises(UnsupportedModel, match=r"isorun\.Embedder"):
        isorun.MultiVectorEmbedder(retrieval / "words", backend="ort-cpu")
    for kind in (isorun.Embedder, isorun.SparseEmbedder):
        for name in NAMES:
            with pytest.raises(UnsupportedModel, match=r"isorun\.MultiVectorEmbedder"):
                kind(models / name, backend="ort-cpu")


@pytest.mark.parametrize(
    ("file", "change", "kind", "message"),
    [
        ("2_MultiVectorMask/config.json", {"keep_only_token_ids": [1]}, UnsupportedModel, "keep_only_token_ids"),
        ("2_MultiVectorMask/config.json", {"skiplist_word": []}, UnsupportedModel, "skiplist_words"),
        ("sentence_bert_config.json", {"query_expansion": {"strategy": "max", "length": 3}}, InvalidModel, "strategy"),
        ("sentence_bert_config.json", {"query_expansion": {"strategy": "min"}}, InvalidModel, "length"),
        ("sentence_bert_config.json", {"query_expansion": {"length": 9, "token": "[X]"}}, InvalidModel, r"\[X\]"),
        ("sentence_bert_config.json", {"query_length": 0}, InvalidModel, "query_length"),
        ("config_sentence_transformers.json", {"query_prefix": 3}, InvalidModel, "query_prefix"),
    ],
)
def test_rejects_settings_by_name(
    file: str, change: dict[str, Any], kind: type[Exception], message: str, models: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(models / "fixed", folder)
    tiny.edit(folder / file, **change)
    with pytest.raises(kind, match=message):
        isorun.MultiVectorEmbedder(folder, backend="ort-cpu")


def test_lengths_for_queries_need_a_module_that_scores_tokens(models: Path, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(models / "plain", folder)
    path = folder / "modules.json"
    listed = [entry for entry in json.loads(path.read_text(encoding="utf-8")) if "Mask" not in entry["type"]]
    path.write_text(json.dumps(listed))
    for kind in (isorun.MultiVectorEmbedder, isorun.Embedder):
        with pytest.raises(UnsupportedModel, match="query_length"):
            kind(folder, backend="ort-cpu")


def _rotary(model: Path, top: Path) -> Path:
    """A model with the encoder of a ModernBERT in place of its own."""
    encoder, folder = exports.checkpoint("modernbert", top / "encoder"), top / "model"
    shutil.copytree(model, folder)
    shutil.rmtree(folder / "1_Dense")
    listed = json.loads((folder / "modules.json").read_text(encoding="utf-8"))
    (folder / "modules.json").write_text(json.dumps([entry for entry in listed if "Dense" not in entry["type"]]))
    for name in ("config.json", "model.safetensors"):
        (folder / name).unlink()
        shutil.copy(encoder / name, folder / name)
    return folder


def test_queries_are_filled_up_where_the_tokenizer_pads(models: Path, tmp_path: Path) -> None:
    folder = _rotary(models / "attend", tmp_path)
    with isorun.MultiVectorEmbedder(folder, backend="ort-cpu") as embedder:
        (right,) = embedder.encode(["a b"], task="query").items
    tiny.edit(folder / "tokenizer_config.json", padding_side="left")
    with isorun.MultiVectorEmbedder(folder, backend="ort-cpu") as embedder:
        (left,) = embedder.encode(["a b"], task="query").items
        real = right.ids.index(right.ids[-1])
        assert list(left.ids) == [*right.ids[real:], *right.ids[:real]]
        (vectors,) = embedder.embed(["a b"], task="query")
        tiny.edit(folder / "2_MultiVectorMask" / "config.json", skiplist_words=[])
    with isorun.MultiVectorEmbedder(folder, backend="ort-cpu") as embedder:
        (same,) = embedder.embed(embedder.encode_ids([list(left.ids)]))
    np.testing.assert_allclose(vectors, same[left.scored], atol=1e-5)
    for expansion in ({"attend": False}, {"attend": True, "strategy": "min"}):
        tiny.edit(folder / "sentence_bert_config.json", query_expansion={"length": 9, **expansion})
        with pytest.raises(UnsupportedModel, match=r"padding_side='left'.*'fixed' and attend"):
            isorun.MultiVectorEmbedder(folder, backend="ort-cpu")


def test_rejects_queries_longer_than_a_window(models: Path, tmp_path: Path) -> None:
    """Of a short query, some of the tokens that fill it up would see no other token."""
    folder = _rotary(models / "fixed", tmp_path)
    window = json.loads((folder / "config.json").read_text(encoding="utf-8"))["local_attention"] // 2
    longest = window + 2  # the special tokens
    with isorun.MultiVectorEmbedder(folder, query_length=longest, backend="ort-cpu"):
        pass
    with pytest.raises(UnsupportedModel, match=f"query_length={longest}"):
        isorun.MultiVectorEmbedder(folder, query_length=longest + 1, backend="ort-cpu")
