"""The page at the root."""

import re
from typing import Any

from fastapi.testclient import TestClient

import served


def test_shows_models_and_requests(client: TestClient) -> None:
    client.post("/embed", json={"inputs": "a"})
    page = client.get("/")
    assert (page.status_code, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert re.search("<td>embedder</td><td>embed</td><td>ort-cpu on [^<]+</td><td>fp32</td>", page.text)
    assert "<td>/embed</td>" in page.text
    assert ": ready</h1>" in page.text


def test_loads_nothing_and_escapes_names(models: dict[str, Any]) -> None:
    with served.client({"<script>alert(1)</script>": models["embedder"]}) as client:
        page = client.get("/")
    assert "<script" not in page.text
    assert not re.search(r"(src|href)=\"?(https?:)?//", page.text)
    assert "default-src 'none'" in page.headers["content-security-policy"]


def test_the_api_page_lists_every_protocol(client: TestClient) -> None:
    paths = client.get("/openapi.json").json()["paths"]
    assert {"/v1/embeddings", "/embed", "/v2/rerank", "/v2/models/{name}/infer", "/ready"} <= set(paths)


def test_the_api_page_loads_nothing_from_elsewhere(client: TestClient) -> None:
    page = client.get("/docs")
    assert page.status_code == 200
    loaded = re.findall(r"(?:src|href)=\"([^\"]+)\"", page.text)
    assert len(loaded) >= 3
    for url in loaded:
        assert url.startswith("/")
        assert client.get(url).status_code == 200, url
