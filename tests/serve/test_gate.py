"""Keys, limits and deadlines, readiness, metrics and CORS."""

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

import isorun
import served
from isorun_serve.app import create_app
from isorun_serve.gate import Gate
from isorun_serve.models import Models, Served
from isorun_serve.settings import Settings
from isorun_serve.traffic import Traffic

URL, BODY = "/v1/embeddings", {"input": "a"}


def test_keys(models: dict[str, Any]) -> None:
    with served.client(models, api_keys=("one", "zwei-ü")) as client:
        for headers in ({}, {"Authorization": "Bearer On"}, {"Authorization": "Basic one"}, {"x-api-key": "ones"}):
            answer = client.post(URL, json=BODY, headers=headers)
            assert (answer.status_code, answer.json()["error"]["code"]) == (401, "invalid_api_key")
            assert answer.headers["www-authenticate"] == "Bearer"
            assert client.get("/metrics", headers=headers).status_code == 401
        assert client.post(URL, json=BODY, headers={"Authorization": "Bearer one"}).status_code == 200
        for headers in ({"x-api-key": "one"}, {"x-api-key": "one ", "Authorization": "Bearer of-a-proxy"}):
            assert client.post(URL, json=BODY, headers=headers).status_code == 200
        of_utf8 = {b"authorization": "Bearer zwei-ü".encode()}
        assert client.post(URL, json=BODY, headers=of_utf8).status_code == 200
        assert [client.get(path).status_code for path in ("/health", "/ready")] == [200, 200]


PATHS = ("/", "/health", "/ready", "/metrics", "/info", "/v1/models", "/v1/models/embedder", "/v2", "/v2/health/live")


@pytest.mark.parametrize("path", [*PATHS, "/v2/models/embedder", "/docs", "/openapi.json"])
def test_head_is_answered_as_get_without_content(client: TestClient, path: str) -> None:
    answer, of_get = client.head(path), client.get(path)
    assert (answer.status_code, answer.content) == (200, b"")
    assert answer.headers["content-type"] == of_get.headers["content-type"]


def test_head_of_other_paths(client: TestClient) -> None:
    assert client.head("/nowhere").status_code == 404
    refused = client.head(URL)
    assert (refused.status_code, refused.headers["allow"]) == (405, "POST")


@pytest.mark.parametrize("path", PATHS[1:])
def test_a_slash_at_the_end_is_ignored(client: TestClient, path: str) -> None:
    answer = client.get(f"{path}/", follow_redirects=False)
    assert answer.status_code == 200


def test_a_slash_at_the_end_is_ignored_by_post(client: TestClient) -> None:
    expected = client.post(URL, json=BODY)
    answer = client.post(f"{URL}/", json=BODY, follow_redirects=False)
    assert (answer.status_code, answer.json()) == (200, expected.json())
    refused = client.post("/v2/models/embedder/infer/", json={"inputs": []}, follow_redirects=False)
    assert (refused.status_code, "No feed" in refused.text) == (400, True)
    assert client.get("/v2/models", follow_redirects=False).status_code == 404


def test_bodies_have_a_limit(client: TestClient) -> None:
    answer = client.post(URL, json={"input": "a" * 10_000})
    assert (answer.status_code, "10000 bytes" in answer.json()["error"]["message"]) == (413, True)
    streamed = client.post(URL, content=(b" " * 1000 for _ in range(11)))  # without its length in the header
    assert streamed.status_code == 413
    announced = client.post(URL, content=b"{}", headers={"content-length": "9" * 5000})
    assert announced.status_code == 413
    packed = client.post(URL, json=BODY, headers={"content-encoding": "gzip"})
    assert packed.status_code == 415


@pytest.mark.parametrize("item", [b"[]", b"{}"])
@pytest.mark.parametrize(("url", "field"), [("/v1/rerank", b"documents"), ("/v2/models/bert/infer", b"inputs")])
def test_the_number_of_lists_of_a_body_has_a_limit(models: dict[str, Any], url: str, field: bytes, item: bytes) -> None:
    body = b'{"%s": [%s]}' % (field, b",".join([item] * 500_000))
    with served.client(models) as client:
        answer = client.post(url, content=body, headers={"content-type": "application/json"})
    assert (answer.status_code, "at most 500000 '[' and '{'" in answer.text) == (413, True)


def test_requests_while_models_are_measured(models: dict[str, Any]) -> None:
    with served.client(models, ready=False, accepting=False) as client:
        assert (client.get("/health").status_code, client.get("/ready").status_code) == (200, 503)
        answer = client.post(URL, json=BODY)
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")


def test_requests_while_models_warm_up(models: dict[str, Any]) -> None:
    with served.client(models, ready=False) as client:
        assert (client.get("/ready").status_code, client.post(URL, json=BODY).status_code) == (503, 200)


def test_requests_while_models_close(folders: dict[str, Path]) -> None:
    embedder = isorun.Embedder(folders["embedder"], backend="ort-cpu")
    models = Models([Served.of("e", embedder)])
    with TestClient(create_app(models, Settings(warmup=False)), raise_server_exceptions=False) as client:
        models.accepting = True
        embedder.close()
        answer = client.post(URL, json=BODY)  # admitted, and too late for the model
        assert (answer.status_code, "stopped" in answer.text) == (503, True)
        models.close()
        answer = client.post(URL, json=BODY)
        assert (answer.status_code, "stopped" in answer.text) == (503, True)
        for path, status in {"/": 503, "/info": 503, "/v2/models/e": 503, "/metrics": 200}.items():
            assert client.get(path).status_code == status


def test_the_number_of_requests_has_a_limit(models: dict[str, Any]) -> None:
    with served.client(models, max_requests=0) as client:
        answer = client.post(URL, json=BODY)
        assert (answer.status_code, answer.headers["retry-after"]) == (429, "1")
        assert client.get("/v1/models/embedder").status_code == 429
        page = client.get("/metrics").text
        assert 'isorun_http_requests_total{method="POST",route="/v1/embeddings",status="429"} 1\n' in page
        assert 'isorun_http_requests_total{method="GET",route="/v1/models/{name:path}",status="429"} 1\n' in page
        assert answer.json()["error"]["type"] == "rate_limit_error"


def test_a_full_queue(models: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise isorun.QueueFull(7)

    with served.client(models) as client:
        monkeypatch.setattr(models["embedder"].session, "check_room", full)
        answer = client.post(URL, json=BODY)
        assert (answer.status_code, answer.headers["retry-after"]) == (429, "1")
        assert answer.json()["error"]["code"] == "rate_limit_exceeded"
        assert "at most 7 texts" in answer.json()["error"]["message"]


def test_deadlines(models: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    cancelled = []

    async def slow(*_: Any, **__: Any) -> None:
        try:
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            cancelled.append(True)
            raise

    with served.client(models) as client:
        monkeypatch.setattr(models["embedder"], "aembed", slow)
        answer = client.post(URL, json=BODY, headers={"x-request-timeout": "0.05"})
        assert (answer.status_code, answer.json()["error"]["code"], cancelled) == (504, "timeout", [True])
        for wrong in ("0", "-1", "soon", "nan"):
            assert client.post(URL, json=BODY, headers={"x-request-timeout": wrong}).status_code == 400


def test_errors_of_the_server_are_logged(
    models: dict[str, Any], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def broken(*_: Any, **__: Any) -> None:
        raise RuntimeError("secret detail")

    async def failed(*_: Any, **__: Any) -> None:
        raise isorun.BackendFailed("secret detail")

    with served.client(models) as client:
        for fault in (broken, failed):
            monkeypatch.setattr(models["embedder"], "aembed", fault)
            caplog.clear()
            answer = client.post(URL, json=BODY, headers={"x-request-id": "r-1"})
            assert (answer.status_code, answer.headers["x-request-id"]) == (500, "r-1")
            assert answer.json()["error"]["type"] == "server_error"
            assert "secret" not in answer.text
            assert "secret detail" in caplog.text


def test_request_ids(client: TestClient) -> None:
    assert client.get("/health", headers={"x-request-id": "abc"}).headers["x-request-id"] == "abc"
    assert re.fullmatch("[0-9a-f]{32}", client.get("/health", headers={"x-request-id": "a b"}).headers["x-request-id"])


def test_metrics(client: TestClient) -> None:
    client.post(URL, json=BODY)
    client.get("/nothing/1")
    client.get("/v1/models/embedder")
    page = client.get("/metrics").text
    assert 'isorun_http_requests_total{method="POST",route="/v1/embeddings",status="200"} 1\n' in page
    assert 'isorun_http_requests_total{method="GET",route="other",status="404"} 1\n' in page
    assert 'isorun_http_requests_total{method="GET",route="/v1/models/{name:path}",status="200"} 1\n' in page
    assert re.search(r'isorun_requests_total\{model="embedder"\} [1-9]', page)
    heads = re.findall("# TYPE (.*) ", page)
    assert len(heads) == len(set(heads))


def test_other_origins_are_allowed_by_name(models: dict[str, Any]) -> None:
    preflight = {"origin": "https://a.example", "access-control-request-method": "POST"}
    with served.client(models) as client:
        assert "access-control-allow-origin" not in client.options(URL, headers=preflight).headers
    with served.client(models, cors_origins=("https://a.example",), api_keys=("k",)) as client:
        allowed = client.options(URL, headers=preflight)
        assert (allowed.status_code, allowed.headers["access-control-allow-origin"]) == (200, "https://a.example")
        refused = client.post(URL, json=BODY, headers={"origin": "https://a.example"})
        assert (refused.status_code, refused.headers["access-control-allow-origin"]) == (401, "https://a.example")
        assert "x-request-id" in refused.headers["access-control-expose-headers"].lower()


@pytest.mark.parametrize("draining", [True, False])
def test_a_request_that_outlives_the_grace_period_is_told_so(draining: bool) -> None:
    """The server cancels it then; its client may send it to another one."""

    async def app(*_: object) -> None:
        await asyncio.sleep(60)

    traffic, sent = Traffic(), []
    traffic.draining = draining
    gate = Gate(app, Settings(api_keys=()), traffic)
    scope = {"type": "http", "method": "GET", "path": "/v1/models", "headers": []}

    async def send(message: Any) -> None:
        sent.append(message)

    async def use() -> None:
        task = asyncio.ensure_future(gate(scope, send, send))
        await asyncio.sleep(0.01)
        task.cancel()
        await task

    if draining:
        asyncio.run(use())
        assert sent[0]["status"] == 503
        assert (b"retry-after", b"1") in sent[0]["headers"]
        assert b"The server has stopped" in sent[1]["body"]
    else:
        with pytest.raises(asyncio.CancelledError):
            asyncio.run(use())
