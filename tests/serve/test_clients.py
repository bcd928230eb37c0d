"""The clients of docs/serve.md, unchanged, against a server of this process's models."""

import json
import shutil
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import uvicorn

import isorun
import programs
import tiny
from isorun_serve.app import create_app
from isorun_serve.models import Models, Served
from isorun_serve.settings import Settings

ROOT = Path(__file__).parents[2]
PYTHON = "ISORUN_SERVE_CLIENTS_PYTHON"
"""A Python that has the clients; without it, an environment is made, which takes minutes."""
CLIENTS = (
    *("openai", "langchain-openai", "llama-index-embeddings-openai", "huggingface_hub", "cohere", "numpy"),
    *("tritonclient[http]", "qdrant-client"),
)
TEXT = "A man is eating food."


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> str:
    return programs.python_with(PYTHON, tmp_path_factory.mktemp("clients"), *CLIENTS)


@pytest.mark.long
def test_clients_get_the_results_of_the_library(
    python: str, minilm: Path, folders: dict[str, Path], bert: Path
) -> None:
    with (
        isorun.Embedder(minilm, backend="ort-cpu") as embedder,
        isorun.CrossEncoder(folders["reranker"], backend="ort-cpu") as reranker,
        isorun.Session(bert, "ort-cpu") as session,
    ):
        opened = {"all-MiniLM-L6-v2": embedder, "reranker": reranker, "bert": session}
        app = create_app(Models([Served.of(name, model) for name, model in opened.items()]), Settings(warmup=False))
        server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="warning", ws="none"))
        thread = threading.Thread(target=server.run)
        expected = embedder.embed([TEXT])
        many = embedder.embed([f"text {number}" for number in range(300)])
        ranked = reranker.rank("Who eats bread?", ["A man eats.", "A girl sings."], top_k=1)
        texts = [TEXT, "A girl is carrying a baby.", "The bank of the river is steep."]
        cosines = embedder.embed(["Who is having a meal?"]) @ embedder.embed(texts).T
        feeds = {**tiny.feeds(1, 3), "input_ids": np.array([[2, 7, 3]]), "attention_mask": np.ones((1, 3), np.int64)}
        hidden = session.run(["last_hidden_state"], {**feeds, "token_type_ids": np.ones((1, 3), np.int64)})[0]
        thread.start()
        try:
            while not server.started:
                time.sleep(0.02)
            port = server.servers[0].sockets[0].getsockname()[1]
            script = Path(__file__).with_name("clients.py")
            printed = programs.output(python, script, ROOT / "docs" / "serve.md", f"127.0.0.1:{port}")
        finally:
            server.should_exit = True
            thread.join()
    results = json.loads(printed)
    for name in ("openai", "langchain_openai", "llama_index", "huggingface_hub"):
        np.testing.assert_allclose(results[name], expected, atol=1e-6, err_msg=name)
    assert [index for index, _ in results["cohere"]] == [ranked[0].position]
    assert results["cohere"][0][1] == pytest.approx(ranked[0].score, abs=1e-6)
    order = np.argsort(-cosines[0])[:2]
    assert [text for text, _ in results["qdrant_client"]] == [texts[at] for at in order]
    np.testing.assert_allclose([score for _, score in results["qdrant_client"]], cosines[0, order], atol=1e-6)
    np.testing.assert_allclose(results["tritonclient"], hidden, atol=1e-6)
    more = results["openai, more"]
    np.testing.assert_allclose(more["many"], many, atol=1e-6)
    first = many[:2, :8]
    np.testing.assert_allclose(more["short"], first / np.linalg.norm(first, axis=1, keepdims=True), atol=1e-6)
    assert more["errors"] == {"model": ["NotFoundError", "model_not_found"], "empty": ["BadRequestError", None]}
    assert more["models"] == list(opened)
    print(shutil.which(python), sorted(results), file=sys.stderr)
