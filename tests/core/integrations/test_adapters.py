"""The adapters on stand-ins for the base classes of their libraries, which are too heavy for these tests."""

import importlib
import json
import pickle
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import isorun
from archives import unpack
from isorun.errors import InvalidArgument, InvalidFeeds, InvalidModel, UnsupportedModel


def module(name: str, **members: Any) -> ModuleType:
    created = ModuleType(name)
    vars(created).update(members)
    return created


class Base:
    """``InputModule``, LangChain's ``Embeddings`` and Chroma's ``EmbeddingFunction``."""

    def __class_getitem__(cls, _: object) -> type:
        return cls


@pytest.fixture
def adapters(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Imports an adapter by name."""
    modules = [
        module("torch", from_numpy=lambda array: array),
        module("sentence_transformers"),
        module("sentence_transformers.base"),
        module("sentence_transformers.base.modules", InputModule=Base),
        module("langchain_core"),
        module("langchain_core.embeddings", Embeddings=Base),
        module("chromadb"),
        module("chromadb.api"),
        module("chromadb.api.types", Documents=list, EmbeddingFunction=Base, Embeddings=list, Space=str),
        module("chromadb.utils"),
        module("chromadb.utils.embedding_functions", register_embedding_function=lambda kind: kind),
    ]
    for fake in modules:
        monkeypatch.setitem(sys.modules, fake.__name__, fake)
    names = [f"isorun.integrations.{name}" for name in ("sentence_transformers", "langchain", "chroma")]
    for name in names:
        monkeypatch.delitem(sys.modules, name, raising=False)
    yield lambda name: importlib.import_module(f"isorun.integrations.{name}")
    for name in names:
        sys.modules.pop(name, None)


@pytest.fixture
def model(bert: Path, tokenizer: Path, tmp_path: Path) -> Path:
    (tmp_path / "tokenizer.json").write_bytes(tokenizer.read_bytes())
    (tmp_path / "model.onnx").write_bytes(bert.read_bytes())
    return tmp_path / "model.onnx"


@pytest.mark.filterwarnings("ignore::isorun.models.tokenizer.TruncationWarning")
def test_the_length_of_a_sentence_transformer_can_be_set_and_its_tokenizer_cannot(adapters: Any, model: Path) -> None:
    transformer = adapters("sentence_transformers").IsorunTransformer(model, backend="ort-cpu")
    limit = transformer.max_seq_length
    transformer.max_seq_length = 3
    assert transformer.max_seq_length == 3
    assert transformer.preprocess(["a man eats bread", "a"])["input_ids"].shape == (2, 3)
    for value in (0, limit + 1, "3"):
        with pytest.raises(InvalidArgument, match="max_length"):
            transformer.max_seq_length = value
    transformer.max_seq_length = None
    assert transformer.max_seq_length == limit
    with pytest.raises(InvalidArgument, match="tokenizer of an IsorunTransformer cannot be replaced"):
        transformer.tokenizer = transformer.tokenizer
    transformer._text.close()
    with pytest.raises(InvalidModel, match="'pooler_output' must have a vector for each token"):
        adapters("sentence_transformers").IsorunTransformer(model, backend="ort-cpu", outputs=["pooler_output"])
    for name, instead in (("batch_tokens", "pass batch_size to encode"), ("max_length", "Pass max_seq_length")):
        with pytest.raises(InvalidArgument, match=f"does not have {name}.*{instead}"):
            adapters("sentence_transformers").IsorunTransformer(model, **{name: 8})


def test_a_sentence_transformer_opens_again_in_another_process(adapters: Any, model: Path) -> None:
    transformer = adapters("sentence_transformers").IsorunTransformer(model, backend="ort-cpu", threads=1)
    transformer.max_seq_length = 7
    opened = pickle.loads(pickle.dumps(transformer))
    assert (opened.model, opened.max_seq_length) == (str(model), 7)
    assert opened.session_options == {"backend": "ort-cpu", "threads": 1}
    texts = ["a man eats", "bread"]
    np.testing.assert_array_equal(opened.preprocess(texts)["input_ids"], transformer.preprocess(texts)["input_ids"])
    for each in (opened, transformer):
        each._text.close()


def test_adapters_reject_what_is_not_a_list_of_texts(adapters: Any, model: Path) -> None:
    options = {"backend": "ort-cpu", "pooling": "mean"}
    transformer = adapters("sentence_transformers").IsorunTransformer(model, backend="ort-cpu")
    langchain = adapters("langchain").IsorunEmbeddings(model, **options)
    chroma = adapters("chroma").IsorunEmbeddingFunction(model, **options)
    for call in (transformer.preprocess, langchain.embed_documents, chroma, chroma.embed_query):
        for texts in ("abc", {"a": "b"}, None):
            with pytest.raises(InvalidArgument, match="texts must be a list of str"):
                call(texts)
        for texts in ([("a", "b")], ["a", None]):
            with pytest.raises(InvalidFeeds, match=rf"^Text {len(texts) - 1} must be a str"):
                call(texts)
    with pytest.raises(InvalidFeeds, match="must be a str, got list"):
        langchain.embed_query(["a"])
    expected = np.asarray(langchain.embed_documents(["a man", "bread"]))
    np.testing.assert_array_equal(chroma(np.array(["a man", "bread"])), expected)
    transformer._text.close()
    langchain.embedder.close()
    chroma.embedder.close()


def test_queries_take_the_route_of_queries(adapters: Any, tmp_path: Path) -> None:
    folder = unpack("retrieval", tmp_path) / "router"
    embeddings = adapters("langchain").IsorunEmbeddings(folder, backend="ort-cpu")
    function = adapters("chroma").IsorunEmbeddingFunction(folder, backend="ort-cpu")
    for task, vectors in (
        ("query", (embeddings.embed_query("bread"), function.embed_query(["bread"])[0])),
        ("document", (embeddings.embed_documents(["bread"])[0], function(["bread"])[0])),
    ):
        with isorun.Embedder(folder, task=task, backend="ort-cpu") as embedder:
            for vector in vectors:
                np.testing.assert_allclose(vector, embedder.embed(["bread"])[0], atol=1e-6)
    for adapter in (embeddings, function):
        assert adapter.query_embedder is not adapter.embedder
        adapter.query_embedder.close()
        adapter.embedder.close()
    with pytest.raises(InvalidArgument, match=r"several models: .*'query', 'document'.* not in place of the router"):
        adapters("sentence_transformers").IsorunTransformer(folder, backend="ort-cpu")
    (alone := folder / "document_0_Transformer").joinpath("chat_template.jinja").write_text("{{ messages }}")
    with pytest.raises(UnsupportedModel, match=r"applies to an embedder without modules\.json"):
        adapters("sentence_transformers").IsorunTransformer(alone, backend="ort-cpu")


@pytest.mark.parametrize(
    ("library", "name"), [("langchain", "IsorunEmbeddings"), ("chroma", "IsorunEmbeddingFunction")]
)
def test_a_collection_keeps_no_bits(adapters: Any, model: Path, library: str, name: str) -> None:
    """A store would compare packed bits as if they were values."""
    with pytest.raises(InvalidArgument, match="quantize='binary'"):
        getattr(adapters(library), name)(model, quantize="binary")


def test_a_configuration_can_be_read_in_another_folder(
    adapters: Any, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    options = {"backend": "ort-cpu", "cache_dir": tmp_path / "cache"}
    function = adapters("chroma").IsorunEmbeddingFunction(model.name, pooling="mean", **options)
    transformer = adapters("sentence_transformers").IsorunTransformer(model.name, **options)
    transformer.save_config = lambda _: None  # of the base class
    transformer.save("")
    stored = {"backend": "ort-cpu", "cache_dir": str(tmp_path / "cache")}
    assert (transformer.model, transformer.session_options) == (str(model), stored)
    config = json.loads(json.dumps(function.get_config()))
    assert (config["model"], config["options"]) == (str(model), {"pooling": "mean", **stored})
    transformer.session_options["threads"] = np.int64(1)
    with pytest.raises(InvalidArgument, match=r"threads cannot be stored.* JSON, got int64"):
        transformer.save("")
    with pytest.raises(InvalidArgument, match="threads cannot be stored"):  # Chroma would search with its own model
        adapters("chroma").IsorunEmbeddingFunction(model, pooling="mean", threads=np.int64(1))
    transformer._text.close()
    function.embedder.close()


def test_a_collection_of_langchain_knows_its_vectors(adapters: Any, model: Path) -> None:
    options = {"backend": "ort-cpu", "pooling": "mean", "prompts": {"query": "q: ", "passage": "p: "}}
    langchain = adapters("langchain").IsorunEmbeddings(model, **options)
    kept = langchain.metadata()
    assert set(map(type, kept.values())) == {str}
    assert langchain.identity.prompt == "p: "
    langchain.check({"of the user": 1, **kept})
    for metadata in (None, {}, {"isorun_vectors": 1}, {"isorun_vectors": "{"}):
        with pytest.raises(InvalidArgument, match="isorun_vectors"):
            langchain.check(metadata)
    langchain.embedder.close()
    with pytest.raises(InvalidArgument, match="Unknown prompt 'pasage'; did you mean 'passage'"):
        adapters("langchain").IsorunEmbeddings(model, document_prompt="pasage", **options)
    other = adapters("langchain").IsorunEmbeddings(model, **{**options, "pooling": "cls"})
    with pytest.raises(InvalidArgument, match="pooling is 'cls' and 'mean'"):
        other.check(kept)
    other.embedder.close()


def test_a_collection_of_chroma_opens_with_the_vectors_that_it_was_made_with(adapters: Any, model: Path) -> None:
    chroma, records = adapters("chroma"), importlib.import_module("isorun.integrations.records")
    function = chroma.IsorunEmbeddingFunction(model, backend="ort-cpu", pooling="mean")
    config = json.loads(json.dumps(function.get_config()))
    again = function.build_from_config(config)
    np.testing.assert_array_equal(again(["a man eats"]), function(["a man eats"]))
    assert function.build_from_config(json.loads(json.dumps(config))) is again
    again.embedder.close()
    reopened = function.build_from_config(config)
    np.testing.assert_array_equal(reopened(["a man eats"]), function(["a man eats"]))
    reopened.embedder.close()
    with pytest.raises(InvalidArgument, match="lacks identity, options"):
        function.build_from_config({"model": config["model"]})
    for field, value in (("model", "0" * 64), ("dimension", 5), ("max_length", 7)):
        changed = {**config["identity"], field: value, "identity": None}
        with pytest.raises(InvalidArgument, match=field):
            function.build_from_config({**config, "identity": changed})
        with pytest.raises(InvalidArgument, match=rf"{field}.* put back the one that the collection was made with"):
            function.validate_config_update({**config, "identity": changed}, config)
    older = {**config["identity"], "precision": "int8", "identity": None}
    with pytest.warns(records.VectorsMayDiffer, match="precision"):
        function.build_from_config({**config, "identity": older}).embedder.close()
    function.embedder.close()
