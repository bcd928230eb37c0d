"""Reranking in the form of Cohere and Jina."""

from typing import Any

import numpy as np
import pytest
from fastapi.testclient import TestClient

import served

TEXTS = ["a", "b c d", "z z"]


@pytest.mark.parametrize("version", ["1", "2"])
def test_documents_by_score(client: TestClient, models: dict[str, Any], version: str) -> None:
    ranked = models["reranker"].rank("q a", TEXTS)
    request = {"model": "reranker", "query": "q a", "documents": TEXTS}
    content = client.post(f"/v{version}/rerank", json=request).json()
    assert [item["index"] for item in content["results"]] == [row.position for row in ranked]
    np.testing.assert_allclose(
        [item["relevance_score"] for item in content["results"]], [row.score for row in ranked], atol=1e-6
    )
    assert (content["meta"]["api_version"]["version"], content["model"]) == (version, "reranker")
    assert content["usage"]["total_tokens"] == sum(models["reranker"].count_tokens(("q a", text)) for text in TEXTS)
    request |= {"documents": [{"text": text} for text in TEXTS], "top_n": 1, "return_documents": True}
    (best,) = client.post(f"/v{version}/rerank", json=request).json()["results"]
    assert (best["index"], best["document"]) == (ranked[0].position, {"text": ranked[0].text})


def test_long_documents_are_cut(client: TestClient, models: dict[str, Any]) -> None:
    request = {"query": "q", "documents": ["a " * 50]}
    (result,) = client.post("/v1/rerank", json=request).json()["results"]
    with pytest.warns(UserWarning, match="truncated"):
        assert result["relevance_score"] == pytest.approx(models["reranker"].predict([("q", "a " * 50)])[0], abs=1e-6)


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        ({"query": "a", "documents": []}, 400, "must not be empty"),
        ({"query": "a", "documents": ["a"] * 9}, 400, "at most 8"),
        ({"query": "a", "documents": ["a " * 300]}, 400, "documents[0] must have at most 500 characters"),
        ({"query": "a", "documents": ["a"], "model": "embedder"}, 400, "not one that scores"),
        ({"query": "a", "documents": ["a"], "model": "other"}, 404, "no model 'other'"),
        ({"query": "a", "documents": ["a"], "max_tokens_per_doc": 5}, 400, "limit of 40"),
        ({"query": "a", "documents": ["a"], "rank_fields": ["title"]}, 400, "rank_fields"),
        ({"query": "a", "documents": ["a"], "top_n": 0}, 400, "greater than or equal to 1"),
        ({"query": "a", "documents": ["a"], "max_chunks_per_doc": 3}, 400, "unknown field 'max_chunks_per_doc'"),
        ({"query": "a", "documents": [{"txt": "a"}]}, 400, "documents: expected strings, or objects"),
        ({"query": "a", "documents": ["a", 5]}, 400, "not so at 1"),
        ({"query": "a", "documents": "a"}, 400, "documents: expected a list"),
        ({"query": "a"}, 400, "documents: Field required"),
        ({"documents": ["a"]}, 400, "query: Field required"),
    ],
)
def test_errors(client: TestClient, body: dict[str, Any], status: int, message: str) -> None:
    answer = client.post("/v2/rerank", json=body)
    assert (answer.status_code, list(answer.json())) == (status, ["message"])
    assert message in answer.json()["message"]


def test_the_query_counts_for_each_document(models: dict[str, Any]) -> None:
    with served.client(models, max_body=1000) as client:
        for count, status in ((4, 200), (6, 400)):
            body = {"query": "a " * 100, "documents": ["a"] * count}
            assert client.post("/v2/rerank", json=body).status_code == status
        assert client.post("/rerank", json={"query": "a " * 100, "texts": ["a"] * 6}).status_code == 413


def test_documents_are_returned_with_all_their_fields(client: TestClient) -> None:
    documents = [{"text": text, "id": number} for number, text in enumerate(TEXTS)]
    body = {"query": "a", "documents": documents, "return_documents": True}
    results = client.post("/v1/rerank", json=body).json()["results"]
    assert [item["document"] for item in results] == [documents[item["index"]] for item in results]


@pytest.mark.parametrize("value", ["123456789012345678901234567890", '"\\ud83d"', "[" * 300 + "]" * 300, "NaN"])
def test_documents_that_an_answer_cannot_hold(client: TestClient, value: str) -> None:
    body = f'{{"query": "a", "documents": [{{"text": "b", "more": {value}}}], "return_documents": true}}'
    answer = client.post("/v1/rerank", content=body, headers={"content-type": "application/json"})
    assert (answer.status_code, "return_documents" in answer.text) == (400, True)
    body = body.replace("true", "false")
    assert client.post("/v1/rerank", content=body, headers={"content-type": "application/json"}).status_code == 200
