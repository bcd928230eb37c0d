"""Texts are read, and vectors made of them, in one way: an embedder's."""

import json
import shutil
import warnings
from pathlib import Path

import numpy as np
import pytest

import isorun
import sentence_models
import tiny
from isorun.compilation import corpus
from isorun.models.lowering import ModelGraphs
from isorun.models.sentence_settings import SentenceSettings
from isorun.models.source import open_model
from isorun.models.text_reader import TextReader, usable_settings
from isorun.models.tokenizer import TruncationWarning
from isorun.models.vectors import TextVectors
from isorun.system.cache import Cache
from isorun.types import ModelInfo, TensorSpec

TEXTS = ["a", "", "A B C a b c", "a b c " * 6, "B"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return sentence_models.write_sentence_model(tmp_path_factory.mktemp("reader"))


def graphs_of(folder: Path, cache: Path) -> ModelGraphs:
    store = Cache(cache)
    return ModelGraphs(open_model(folder, store), store)


@pytest.mark.parametrize("include_prompt", [False, True])
def test_vectors_are_those_of_an_embedder(folder: Path, tmp_path: Path, include_prompt: bool) -> None:
    """With a maximum length below the positions of the graph, lower case, and a default prompt."""
    copy = shutil.copytree(folder, tmp_path / "model")
    tiny.edit(copy / "1_Pooling" / "config.json", include_prompt=include_prompt)
    graphs = graphs_of(copy, tmp_path / "cache")
    make = TextVectors.of(graphs.source, graphs.info)
    with warnings.catch_warnings(action="ignore", category=TruncationWarning):
        feeds, _ = corpus.workload(graphs, TEXTS, 2, len(TEXTS))
        with isorun.Session(graphs.source.path, backend="ort-cpu") as session:
            vectors = np.concatenate([make(session.run(graphs.info.output_names, batch), batch) for batch in feeds])
        with isorun.Embedder(copy, backend="ort-cpu") as embedder:
            assert embedder.max_length == max(batch["input_ids"].shape[1] for batch in feeds)
            assert embedder.identity.prompt == TextReader(copy, graphs.info).prompt != ""
            np.testing.assert_allclose(vectors, embedder.embed(TEXTS), rtol=0, atol=1e-5)


@pytest.mark.parametrize(("pooling", "why"), [(("mean",), "last_hidden_state"), ((), "pool")])
def test_says_what_a_model_lacks_that_makes_no_vectors(pooling: tuple[str, ...], why: str) -> None:
    info = ModelInfo((), (TensorSpec("pooler_output", "tensor(float)", ("batch", 4)),), 17)
    vectors = TextVectors(SentenceSettings(pooling=pooling), info)
    assert (bool(vectors), why in vectors.lack) == (False, True)


def test_the_name_of_a_measurement_covers_the_settings_beside_a_model(folder: Path, tmp_path: Path) -> None:
    built = graphs_of(folder, tmp_path / "cache")
    path = tmp_path / "plain" / "model.onnx"
    path.parent.mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json", "config.json"):
        shutil.copy(folder / name, path.with_name(name))
    import onnx

    model = onnx.load(built.source.path)
    del model.metadata_props[:]
    onnx.save(model, path)
    before = corpus.digest(graphs_of(path, tmp_path / "cache"), None)
    shutil.copytree(folder / "1_Pooling", path.parent / "1_Pooling")
    (path.parent / "sentence_bert_config.json").write_text('{"max_seq_length": 5}')
    graphs = graphs_of(path, tmp_path / "cache")
    assert corpus.digest(graphs, None) != before
    assert TextReader(path, graphs.info).encode(["a"], 7)["input_ids"].shape == (1, 7)
    with pytest.warns(TruncationWarning, match="maximum of 5 tokens"):
        assert TextReader(path, graphs.info).encode(["a b c a b c"])["input_ids"].shape == (1, 5)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("modules.json", [{"type": "custom.Module"}]),
        ("config_sentence_transformers.json", {"default_prompt_name": "x"}),
    ],
)
def test_texts_are_read_where_the_settings_cannot_be_used(
    folder: Path, tmp_path: Path, name: str, content: object
) -> None:
    """But no vectors are made of such a model."""
    import onnx

    copy = shutil.copytree(folder, tmp_path / "model")
    built = graphs_of(folder, tmp_path / "cache")
    model = onnx.load(built.source.path)
    del model.metadata_props[:]
    onnx.save(model, copy / "model.onnx")
    (copy / name).write_text(json.dumps(content))
    graphs = graphs_of(copy / "model.onnx", tmp_path / "cache")
    assert usable_settings(graphs.source.path, graphs.info).pooling == ()
    assert corpus.own_texts(graphs)
    vectors, why = TextVectors.find(graphs.source, graphs.info)
    assert vectors is None
    assert why
