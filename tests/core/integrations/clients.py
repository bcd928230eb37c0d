"""Run by ``test_clients.py`` in an environment with the clients: ``python clients.py MINILM VARIANT TEXTS.json``."""

import asyncio
import json
import sys
import tempfile
from pathlib import Path

import numpy as np
from sentence_transformers import SentenceTransformer

import isorun
from isorun.integrations.chroma import IsorunEmbeddingFunction
from isorun.integrations.langchain import IsorunEmbeddings
from isorun.integrations.sentence_transformers import IsorunTransformer

minilm, variant = sys.argv[1], sys.argv[2]
texts = json.loads(Path(sys.argv[3]).read_text(encoding="utf-8"))
BACKEND = {"backend": "ort-cpu"}


def same(got: object, expected: np.ndarray, what: str) -> None:
    error = float(abs(np.asarray(got) - expected).max())
    assert error <= 1e-5, f"{what}: {error}"
    print(f"{what}: maximum difference {error:.2g}")


expected = {}
for folder in (minilm, variant):
    name = Path(folder).name
    model = SentenceTransformer(folder, device="cpu")
    expected[folder] = model.encode(texts)
    with isorun.Embedder(folder, **BACKEND) as embedder:
        same(embedder.embed(texts), expected[folder], f"Embedder, {name}")
    model[0] = IsorunTransformer(folder, **BACKEND)
    same(model.encode(texts), expected[folder], f"IsorunTransformer, {name}")
    with tempfile.TemporaryDirectory() as saved:
        model[0].save(saved)
        loaded = IsorunTransformer.load(saved)
        assert (loaded.max_seq_length, loaded.model) == (model[0].max_seq_length, folder)

langchain = IsorunEmbeddings(minilm, **BACKEND)
same(langchain.embed_documents(texts[:5]), expected[minilm][:5], "LangChain documents")
same(langchain.embed_query(texts[0]), expected[minilm][0], "LangChain query")
same(asyncio.run(langchain.aembed_documents(texts[:5])), expected[minilm][:5], "LangChain, asynchronous")

import chromadb  # noqa: E402  # it takes seconds

with tempfile.TemporaryDirectory() as folder:
    client = chromadb.PersistentClient(folder)
    collection = client.create_collection("texts", embedding_function=IsorunEmbeddingFunction(minilm, **BACKEND))
    collection.add(ids=[str(index) for index in range(5)], documents=texts[:5])
    same(collection.get(include=["embeddings"])["embeddings"], expected[minilm][:5], "Chroma")
    again = client.get_collection("texts")  # the embedding function comes from the stored configuration
    assert again.query(query_texts=[texts[3]], n_results=1)["ids"] == [["3"]]
