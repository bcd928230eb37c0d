"""OpenAI's protocol, with the library's results."""

import base64
from typing import Any

import numpy as np
import pytest
from fastapi.testclient import TestClient

import served

URL = "/v1/embeddings"


def vectors(answer: Any) -> np.ndarray:
    assert answer.status_code == 200, answer.text
    data = answer.json()["data"]
    assert [item["index"] for item in data] == list(range(len(data)))
    return np.array([item["embedding"] for item in data], np.float32)


@pytest.mark.parametrize("texts", ["a b c", ["a b c"], ["a", "b c", "", "z y x"]])
def test_texts(client: TestClient, models: dict[str, Any], texts: Any) -> None:
    answer = client.post(URL, json={"input": texts, "model": "embedder"})
    expected = [texts] if isinstance(texts, str) else texts
    np.testing.assert_allclose(vectors(answer), models["embedder"].embed(expected), atol=1e-6)
    content = answer.json()
    tokens = sum(models["embedder"].count_tokens(text) for text in expected)
    assert content["usage"] == {"prompt_tokens": tokens, "total_tokens": tokens}
    assert (content["object"], content["model"], content["data"][0]["object"]) == ("list", "embedder", "embedding")


@pytest.mark.parametrize("several", [False, True])
def test_token_ids(client: TestClient, models: dict[str, Any], several: bool) -> None:
    ids = [list(item.ids) for item in models["embedder"].encode(["a b c", "x"]).items][: 1 + several]
    answer = client.post(URL, json={"input": ids if several else ids[0]})
    np.testing.assert_allclose(vectors(answer), models["embedder"].embed(["a b c", "x"][: 1 + several]), atol=1e-6)


def test_base64_and_dimensions(client: TestClient, models: dict[str, Any]) -> None:
    request = {"input": ["a b c", "x"], "dimensions": 8, "encoding_format": "base64"}
    data = client.post(URL, json=request).json()["data"]
    decoded = np.stack([np.frombuffer(base64.b64decode(item["embedding"]), "<f4") for item in data])
    first = models["embedder"].embed(["a b c", "x"])[:, :8]
    np.testing.assert_allclose(decoded, first / np.linalg.norm(first, axis=1, keepdims=True), atol=1e-6)


def test_models(client: TestClient) -> None:
    listed = client.get("/v1/models").json()
    assert [(model["id"], model["task"]) for model in listed["data"]] == [
        *(("embedder", "embed"), ("reranker", "rerank"), ("classifier", "classify"), ("bert", "tensors"))
    ]
    assert client.get("/v1/models/reranker").json()["object"] == "model"
    assert client.get("/v1/models/nothing").status_code == 404


def test_prompts(client: TestClient, models: dict[str, Any]) -> None:
    embedder = models["embedder"]
    data = client.post(URL, json={"input": "a", "prompt_name": "query"}).json()["data"]
    np.testing.assert_allclose(data[0]["embedding"], embedder.embed(["a"], prompt_name="query")[0], atol=1e-6)
    for wrong in ({"input": "a", "prompt_name": "qery"}, {"input": [2, 4, 3], "prompt_name": "query"}):
        assert client.post(URL, json=wrong).status_code == 400


def test_null_is_the_default(client: TestClient) -> None:
    plain = client.post(URL, json={"input": "a"}).json()
    nulls = {"dimensions": None, "encoding_format": None, "user": None, "model": None}
    assert client.post(URL, json={"input": "a", **nulls}).json() == plain


@pytest.mark.parametrize(
    ("request_", "status", "code", "param", "message"),
    [
        ({"input": "a", "model": "embeder"}, 404, "model_not_found", "model", "embeder.*did you mean 'embedder'"),
        ({"input": "a", "model": "reranker"}, 400, None, "model", "not one that embeds"),
        ({"input": []}, 400, None, "input", "must not be empty"),
        ({"input": [[]]}, 400, None, "input", "no token ids"),
        ({"input": {"a": 1}}, 400, None, "input", "expected a string"),
        ({"input": ["a", 1]}, 400, None, "input", "expected a string"),
        ({"input": [["a"]]}, 400, None, "input", "expected a string"),
        ({"input": [98_765]}, 400, None, "input", "embedding table"),
        ({"input": "a", "prompt_name": "qery"}, 400, None, "prompt_name", "did you mean 'query'"),
        ({"input": [2, 3], "prompt_name": "query"}, 400, None, "prompt_name", "not for token ids"),
        ({}, 400, None, "input", "required"),
        (
            {"input": "a", "dimension": 8},
            400,
            None,
            "dimension",
            "unknown field 'dimension'; did you mean 'dimensions'",
        ),
        ({"input": "a", "task": "retrieval.query"}, 400, None, "task", "unknown field 'task'; known: dimensions"),
        ({"input": "a", "dimensions": 0}, 400, None, "dimensions", "greater than or equal to 1"),
        ({"input": "a", "dimensions": 33}, 400, None, "dimensions", "dimensions must be from 1 to 32"),
        ({"input": "a", "encoding_format": "hex"}, 400, None, "encoding_format", "'float' or 'base64'"),
        ({"input": ["a"] * 9}, 400, None, "input", "at most 8 texts, got 9"),
        ({"input": ["a " * 30] * 3}, 400, None, "input", "at most 64 tokens in all, got at least 96"),
        ({"input": "a " * 251}, 400, None, "input", "at most 500 characters"),
        ({"input": [[4], [4] * 41]}, 400, "context_length_exceeded", "input", r"input\[1\] .* never cut"),
        (
            {"input": ["a", "a " * 39]},
            400,
            "context_length_exceeded",
            "input",
            r"input\[1\] has more than the 40 tokens",
        ),
    ],
)
def test_errors(
    client: TestClient, request_: dict[str, Any], status: int, code: str | None, param: str | None, message: str
) -> None:
    answer = client.post(URL, json=request_)
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["param"]) == (status, code, param), error
    assert error["type"] == "invalid_request_error"
    with pytest.raises(ValueError, match=message):
        raise ValueError(error["message"])


@pytest.mark.parametrize(
    ("body", "message", "param"),
    [
        *((b'{"input": ', "valid JSON", None), (b"", "must be a JSON object, and is missing", None)),
        *((b"[]", "must be a JSON object", None), (b'{"input": "\xff"}', "can't decode byte 0xff", None)),
        (b"9" * 5000, "digits", None),
        (b'{"input": ["a", "\\ud800"]}', "input[1] contains a lone surrogate", "input"),
    ],
)
def test_bodies_that_are_not_json_or_not_unicode(
    client: TestClient, body: bytes, message: str, param: str | None
) -> None:
    answer = client.post(URL, content=body, headers={"content-type": "application/json"})
    error = answer.json()["error"]
    assert (answer.status_code, error["param"], message in error["message"]) == (400, param, True)


def test_body_without_its_content_type(client: TestClient) -> None:
    answer = client.post("/v1/embeddings", data={"input": "a"})  # as curl sends -d
    assert (answer.status_code, "application/json" in answer.json()["error"]["message"]) == (415, True)


def test_texts_are_cut_only_if_the_server_says_so(models: dict[str, Any]) -> None:
    with served.client(models, auto_truncate=True) as client:
        answer = vectors(client.post(URL, json={"input": ["a " * 50]}))
    with pytest.warns(UserWarning, match="truncated to 40"):
        np.testing.assert_allclose(answer, models["embedder"].embed(["a " * 50]), atol=1e-6)
