"""The protocol of text-embeddings-inference, with the library's results."""

import json
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fastapi.testclient import TestClient

import isorun
import served
from isorun.text.classifier import Class

TEXTS = ["a b c", "x", ""]


@pytest.mark.parametrize("url", ["/embed", "/"])
def test_embed(client: TestClient, models: dict[str, Any], url: str) -> None:
    embedder = models["embedder"]
    answer = client.post(url, json={"inputs": TEXTS}).json()
    np.testing.assert_allclose(answer, embedder.embed(TEXTS), atol=1e-6)
    answer = client.post(url, json={"inputs": "a b", "normalize": False, "prompt_name": "query"}).json()
    np.testing.assert_allclose(answer, embedder.embed(["a b"], normalize=False, prompt_name="query"), atol=1e-6)
    ids = [list(item.ids) for item in embedder.encode(TEXTS).items]
    answer = client.post(url, json={"inputs": ids, "dimensions": 4}).json()
    np.testing.assert_allclose(answer, embedder.embed(TEXTS, truncate_dim=4, normalize=True), atol=1e-6)


def test_texts_are_cut_if_the_client_says_so(client: TestClient, models: dict[str, Any]) -> None:
    text = "a " * 50
    answer = client.post("/embed", json={"inputs": text})
    assert (answer.status_code, answer.json()["error_type"]) == (413, "Validation")
    cut = client.post("/embed", json={"inputs": text, "truncate": True, "truncation_direction": "Right"})
    np.testing.assert_allclose(cut.json(), models["embedder"].embed(["a " * 38]), atol=1e-6)
    other_side = client.post("/embed", json={"inputs": text, "truncate": True, "truncation_direction": "Left"})
    assert (other_side.status_code, "'right'" in other_side.json()["error"]) == (400, True)


def test_rerank(client: TestClient, models: dict[str, Any]) -> None:
    texts = ["a", "b c d", "z z"]
    ranked = models["reranker"].rank("q a", texts)
    request = {"query": "q a", "texts": texts}
    answer = client.post("/rerank", json={**request, "return_text": True}).json()
    assert [(item["index"], item["text"]) for item in answer] == [(row.position, row.text) for row in ranked]
    np.testing.assert_allclose([item["score"] for item in answer], [row.score for row in ranked], atol=1e-6)
    raw = client.post("/rerank", json={**request, "raw_scores": True}).json()
    assert "text" not in raw[0]
    np.testing.assert_allclose(
        1 / (1 + np.exp([-item["score"] for item in raw])), [row.score for row in ranked], atol=1e-6
    )


@pytest.mark.parametrize(
    ("inputs", "texts", "several"),
    [
        *(("a b", ["a b"], False), (["a b"], ["a b"], False), (["a", "b"], [("a", "b")], False)),
        ([["a"], ["a", "b"], ["c"]], ["a", ("a", "b"), "c"], True),
    ],
)
def test_predict(client: TestClient, models: dict[str, Any], inputs: Any, texts: Any, several: bool) -> None:
    answer = client.post("/predict", json={"inputs": inputs, "model": "classifier"}).json()
    rows = answer if several else [answer]
    expected = models["classifier"].classify(texts, top_k=None)
    assert [[item["label"] for item in row] for row in rows] == [[best.label for best in row] for row in expected]
    scores = [[item["score"] for item in row] for row in rows]
    np.testing.assert_allclose(scores, [[best.score for best in row] for row in expected], atol=1e-6)
    raw = client.post("/predict", json={"inputs": inputs, "model": "classifier", "raw_scores": True}).json()
    assert abs(sum(item["score"] for item in (raw[0] if several else raw)) - 1) > 0.01


def test_parameters_of_hugging_faces_clients(models: dict[str, Any], folders: dict[str, Path]) -> None:
    def post(**more: Any) -> list[float]:
        body = {"inputs": "a b", "options": {"wait_for_model": True}, **more}
        answer = client.post("/", json=body)
        assert answer.status_code == 200, answer.text
        return [item["score"] for item in answer.json()]

    with served.client({"classifier": models["classifier"]}) as client:
        for function in (None, "sigmoid", "softmax", "none"):
            (expected,) = models["classifier"].classify(["a b"], top_k=2, function=function)
            scores = post(parameters={"top_k": 2, "function_to_apply": function})
            assert scores == pytest.approx([best.score for best in expected], abs=1e-6)
        assert len(post(parameters={})) == len(served.LABELS)
        both = {"inputs": "a", "raw_scores": True, "parameters": {"function_to_apply": "softmax"}}
        assert client.post("/predict", json=both).status_code == 400
    with served.client({"reranker": models["reranker"]}) as client:
        (logit,) = models["reranker"].predict([("a b", "c")], activation="Identity")
        assert post(inputs=["a b", "c"], parameters={"function_to_apply": "none"}) == pytest.approx([logit], abs=1e-6)
    with isorun.Classifier(folders["reranker"], backend="ort-cpu") as classifier:
        for model in (models["reranker"], classifier):
            with served.client({"one class": model}) as client:
                body = {"inputs": ["a b", "c"], "parameters": {"function_to_apply": "softmax"}}
                assert "1 for every text" in client.post("/predict", json=body).json()["error"]


def test_the_root_of_a_server_of_one_model(models: dict[str, Any]) -> None:
    with served.client({"classifier": models["classifier"]}) as client:
        assert {item["label"] for item in client.post("/", json={"inputs": "a"}).json()} == set(served.LABELS)
        error = client.post("/", json={"input": "a"}).json()["error"]
        assert error.startswith("unknown field 'input'; did you mean"), error
        assert "classifier (classify)" in error
    with served.client({"reranker": models["reranker"]}) as client:
        assert client.post("/", json={"query": "a", "texts": ["b"]}).json()[0]["index"] == 0
        (score,) = client.post("/predict", json={"inputs": ["a", "b"]}).json()
        assert score["score"] == pytest.approx(models["reranker"].predict([("a", "b")])[0], abs=1e-6)


def test_tokenize_and_decode(client: TestClient, models: dict[str, Any]) -> None:
    (tokens,) = client.post("/tokenize", json={"inputs": "ab b", "prompt_name": "query"}).json()
    assert [(token["text"], token["special"], token["start"], token["stop"]) for token in tokens] == [
        *(("[CLS]", True, None, None), ("q", False, 0, 1), ("ab", False, 2, 4), ("b", False, 5, 6)),
        ("[SEP]", True, None, None),
    ]
    assert [token["id"] for token in tokens] == list(models["embedder"].encode(["q ab b"]).items[0].ids)
    plain = client.post("/tokenize", json={"inputs": ["a", "b"], "add_special_tokens": False}).json()
    assert [[token["text"] for token in row] for row in plain] == [["a"], ["b"]]
    assert client.post("/decode", json={"ids": [2, 4, 5, 3]}).json() == ["a b"]
    assert client.post("/decode", json={"ids": [[4], [5]], "skip_special_tokens": False}).json() == ["a", "b"]
    assert client.post("/decode", json={"ids": [99]}).status_code == 400
    assert client.post("/tokenize", json={"inputs": "a", "prompt_name": "nothing"}).status_code == 400


def test_info(client: TestClient) -> None:
    info = client.get("/info").json()
    assert (info["model_id"], info["model_type"]) == ("embedder", {"embedding": {"pooling": "mean"}})
    assert (info["max_input_length"], info["max_client_batch_size"], info["backend"]) == (40, 8, "ort-cpu")
    assert [model["task"] for model in info["models"]] == ["embed", "rerank", "classify", "tensors"]


@pytest.mark.parametrize(
    ("url", "body", "status", "message"),
    [
        ("/embed", {"inputs": []}, 400, "must not be empty"),
        ("/embed", {"inputs": ["a"] * 9}, 413, "at most 8"),
        ("/embed", {"inputs": ["a", "b" * 501], "truncate": True}, 413, "inputs[1] must have at most 500 characters"),
        ("/predict", {"inputs": ["b" * 501, "a"]}, 413, "inputs[0] must have at most 500"),
        ("/tokenize", {"inputs": "b" * 501}, 413, "at most 500 characters, got 501"),
        ("/rerank", {"query": "b" * 501, "texts": ["a"]}, 413, "query must have at most 500 characters"),
        ("/embed", {"inputs": "a", "prompt_name": "qery"}, 400, "prompt 'qery'"),
        ("/embed", {"inputs": "a", "model": "bert"}, 400, "not one that embeds"),
        ("/embed", {"inputs": "a", "normalise": False}, 400, "did you mean 'normalize'?"),
        ("/embed", {"inputs": [2, 4, 3], "prompt_name": "query"}, 400, "not for token ids"),
        ("/embed", {"inputs": [[4] * 41], "truncate": True}, 413, "inputs[0] has more than the 40 tokens"),
        ("/embed", {"inputs": "a " * 50}, 413, "--auto-truncate"),
        ("/embed", {"inputs": "a " * 50, "truncate": False}, 413, "set truncate to true"),
        ("/tokenize", {"inputs": "a " * 200}, 413, "at most 64 tokens in all, got at least 67"),
        ("/tokenize", {"inputs": ["a " * 50] * 2}, 413, "at most 64 tokens in all, got at least 104"),
        ("/decode", {"ids": [4] * 65}, 413, "at most 64 tokens in all, got at least 65"),
        ("/tokenize", {"inputs": [1]}, 400, "inputs: expected a string, or a list of strings"),
        ("/decode", {"ids": [[4], 5]}, 400, "ids: expected a list of token ids"),
        ("/tokenize", {"inputs": "a", "truncate": True}, 400, "unknown field 'truncate'"),
        ("/predict", {"inputs": "a", "parameters": {"topk": 1}}, 400, "parameters: unknown field 'topk'"),
        ("/predict", {"inputs": "a", "parameters": {"function_to_apply": "relu"}}, 400, "function_to_apply"),
        ("/predict", {"inputs": ["a", "b", "c"]}, 400, "a pair"),
        ("/predict", {"inputs": [["a"], "b"]}, 400, "a pair"),
        ("/rerank", {"query": "a", "texts": []}, 400, "must not be empty"),
        ("/rerank", {"query": "a"}, 400, "required"),
        ("/nothing", {}, 404, "no such path"),
        ("/embed", None, 400, "is missing"),
    ],
)
def test_errors(client: TestClient, url: str, body: Any, status: int, message: str) -> None:
    answer = client.post(url, json=body) if body is not None else client.post(url)
    assert (answer.status_code, answer.json()["error_type"]) == (status, "Validation")
    assert message in answer.json()["error"]


def test_token_ids_of_tokenize_have_the_default_prompt(client: TestClient, models: dict[str, Any]) -> None:
    embedder = models["embedder"]
    before = embedder.default_prompt
    embedder.default_prompt = "query"
    try:
        (tokens,) = client.post("/tokenize", json={"inputs": "a b", "model": "embedder"}).json()
        vector = client.post("/embed", json={"inputs": [[token["id"] for token in tokens]]}).json()
        np.testing.assert_allclose(vector, embedder.embed(["a b"]), atol=1e-6)
    finally:
        embedder.default_prompt = before


def test_token_ids_of_a_model_whose_pooling_leaves_out_its_prompt(tmp_path: Path) -> None:
    folder = served.write_embedder(tmp_path / "embedder")  # with a prompt
    pooling = {"pooling_mode": "mean", "include_prompt": False}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    with isorun.Embedder(folder, backend="ort-cpu") as model, served.client({"e": model}) as client:
        for url, body in {"/embed": {"inputs": [[2, 4, 3]]}, "/v1/embeddings": {"input": [[2, 4, 3]]}}.items():
            answer = client.post(url, json=body)
            assert (answer.status_code, "include_prompt" in answer.text) == (400, True)


@pytest.mark.parametrize(
    ("url", "body"),
    [
        ("/embed", {"inputs": "a", "normalize": "no"}),
        ("/embed", {"inputs": "a", "dimensions": True}),
        ("/v1/embeddings", {"input": "a", "model": "embedder", "dimensions": "4"}),
        ("/v1/rerank", {"query": "a", "documents": ["a", "b"], "top_n": True}),
        ("/decode", {"ids": [True, "5"]}),
    ],
)
def test_values_of_another_type_are_rejected(client: TestClient, url: str, body: dict[str, Any]) -> None:
    assert client.post(url, json=body).status_code in (400, 422)


def test_a_field_that_holds_half_a_character(client: TestClient) -> None:
    answer = client.post(
        "/embed", content=b'{"inputs": "a", "\\ud800": 1}', headers={"content-type": "application/json"}
    )
    assert (answer.status_code, "unknown field" in answer.text) == (400, True)


@pytest.mark.parametrize("url", ["/v1/rerank", "/rerank", "/decode"])
def test_one_error_is_described_of_many(models: dict[str, Any], url: str) -> None:
    wrong = [None] * 100_000
    body = {"query": "a", "documents": wrong} if "v1" in url else {"query": "a", "texts": wrong}
    body = {"ids": wrong} if url == "/decode" else body
    with served.client(models) as client:
        tracemalloc.start()
        try:
            assert client.post(url, json=body).status_code == 400
            assert tracemalloc.get_traced_memory()[1] < 50 * 2**20
        finally:
            tracemalloc.stop()


def test_numbers_that_json_cannot_hold(
    client: TestClient, models: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def classify(*_: Any, **__: Any) -> list[list[Class]]:
        return [[Class("good", float("nan"))]]

    monkeypatch.setattr(models["classifier"], "aclassify", classify)
    answer = client.post("/predict", json={"inputs": "a", "model": "classifier"})
    assert (answer.status_code, "NaN" in answer.json()["error"]) == (500, True)
