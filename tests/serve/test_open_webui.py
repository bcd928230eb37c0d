"""Requests as Open WebUI sends them, with the variables of docs/serve.md."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fastapi.testclient import TestClient

import served

PAGE = Path(__file__).parents[2] / "docs" / "serve.md"
HEADERS = {"X-OpenWebUI-User-Name": "a", "X-OpenWebUI-User-Id": "1", "X-OpenWebUI-User-Role": "user"}


@pytest.fixture(scope="module")
def variables() -> dict[str, str]:
    return dict(re.findall(r"^export (\w+)=(\S+)$", PAGE.read_text(encoding="utf-8"), re.MULTILINE))


@pytest.fixture
def webui(models: dict[str, Any], variables: dict[str, str]) -> Any:
    names = {
        variables["RAG_EMBEDDING_MODEL"]: models["embedder"],
        variables["RAG_RERANKING_MODEL"]: models["reranker"],
    }
    with served.client(names, api_keys=("none",)) as client:
        yield client


def post(client: TestClient, url: str, key: str, body: dict[str, Any]) -> Any:
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {key}", **HEADERS}
    answer = client.post(url.removeprefix("http://127.0.0.1:8080"), json=body, headers=headers)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_embeddings(webui: TestClient, variables: dict[str, str], models: dict[str, Any]) -> None:
    body = {"input": ["a b c", "x"], "model": variables["RAG_EMBEDDING_MODEL"]}
    url = variables["RAG_OPENAI_API_BASE_URL"] + "/embeddings"
    data = post(webui, url, variables["RAG_OPENAI_API_KEY"], body)["data"]
    np.testing.assert_allclose([row["embedding"] for row in data], models["embedder"].embed(body["input"]), atol=1e-6)


def test_reranking(webui: TestClient, variables: dict[str, str], models: dict[str, Any]) -> None:
    documents = ["c d", "a b", "x"]
    body = {"model": variables["RAG_RERANKING_MODEL"], "query": "a", "documents": documents, "top_n": 3}
    url, key = variables["RAG_EXTERNAL_RERANKER_URL"], variables["RAG_EXTERNAL_RERANKER_API_KEY"]
    results = sorted(post(webui, url, key, body)["results"], key=lambda result: result["index"])
    expected = models["reranker"].predict([("a", document) for document in documents], activation="Sigmoid")
    np.testing.assert_allclose([result["relevance_score"] for result in results], expected, atol=1e-6)
