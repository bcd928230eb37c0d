"""Sparse vectors over the protocol of text-embeddings-inference, with the library's results."""

import json
import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
from fastapi.testclient import TestClient

import isorun
import served
from archives import unpack
from isorun_serve.models import Models, Served
from isorun_serve.opening import Named, open_models, task_of

TEXTS = ["a man is eating food", "x", ""]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tiny sparse encoders."""
    return unpack("retrieval", tmp_path_factory.mktemp("sparse"))


@pytest.fixture(scope="module")
def embedder(folder: Path) -> Iterator[isorun.SparseEmbedder]:
    with isorun.SparseEmbedder(folder / "splade-sum", backend="ort-cpu") as opened:
        yield opened


@pytest.fixture
def client(embedder: isorun.SparseEmbedder) -> Iterator[TestClient]:
    with served.client({"words": embedder}, max_texts=8) as opened:
        yield opened


@pytest.mark.parametrize("prompt", [None, "query"])
def test_weights_of_words(client: TestClient, embedder: isorun.SparseEmbedder, prompt: str | None) -> None:
    answer = client.post("/embed_sparse", json={"inputs": TEXTS, "prompt_name": prompt}).json()
    expected = embedder.embed(TEXTS, prompt_name=prompt)
    assert [[item["index"] for item in row] for row in answer] == [row.indices.tolist() for row in expected]
    for row, wanted in zip(answer, expected, strict=True):
        np.testing.assert_allclose([item["value"] for item in row], wanted.values, atol=1e-5)


def test_tokens_in_place_of_texts(client: TestClient, embedder: isorun.SparseEmbedder) -> None:
    ids = [list(item.ids) for item in embedder.encode(TEXTS).items]
    by_ids, by_text = (client.post("/embed_sparse", json={"inputs": inputs}).json() for inputs in (ids, TEXTS))
    assert by_ids == by_text == client.post("/", json={"inputs": TEXTS}).json()


def test_other_tasks_are_refused(client: TestClient) -> None:
    answer = client.post("/embed", json={"inputs": "a"})
    assert (answer.status_code, "words (sparse)" in answer.json()["error"]) == (404, True)
    unknown = client.post("/embed_sparse", json={"inputs": "a", "prompt_name": "qery"})
    assert (unknown.status_code, "'qery'" in unknown.json()["error"]) == (400, True)


def test_a_server_of_dense_models_has_none(models: dict[str, isorun.Session]) -> None:
    with served.client({"bert": models["bert"]}) as dense:
        answer = dense.post("/embed_sparse", json={"inputs": "a"})
    assert (answer.status_code, "makes sparse vectors" in answer.json()["error"]) == (404, True)


def test_files_say_what_a_model_is_for(folder: Path, tmp_path: Path) -> None:
    assert [task_of(folder / name) for name in ("splade", "splade-sum", "splade-router")] == ["sparse"] * 3
    assert task_of(folder / "static") == "embed"
    assert task_of(unpack("rerankers", tmp_path) / "modules") == "rerank"
    opened = open_models([Named("s", "splade", None)], {"s": folder / "splade"}, {"backend": "ort-cpu"})
    try:
        (model,) = opened
        assert isinstance(model, Served)
        assert (model.task, type(model.model)) == ("sparse", isorun.SparseEmbedder)
        assert isinstance(opened, Models)
    finally:
        opened.close()


def test_a_default_route_without_a_model_is_refused(folder: Path, tmp_path: Path) -> None:
    path = Path(shutil.copytree(folder / "splade-router", tmp_path / "router"))
    config = path / "router_config.json"
    router = json.loads(config.read_text())
    for default, refused in (("document", False), ("query", True)):
        config.write_text(json.dumps({**router, "parameters": {**router["parameters"], "default_route": default}}))
        with ExitStack() as stack:
            if refused:
                stack.enter_context(pytest.raises(isorun.UnsupportedModel, match="default_route"))
            open_models([Named("s", "router", None)], {"s": path}, {"backend": "ort-cpu"}).close()
