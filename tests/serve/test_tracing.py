"""Spans of OpenTelemetry: one for each request, below the client's."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from fastapi.testclient import TestClient

trace = pytest.importorskip("opentelemetry.trace", reason="needs opentelemetry-api")

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


class Tracer:
    """Keeps the spans that are started; the SDK of OpenTelemetry is not needed for that."""

    def __init__(self) -> None:
        self.spans: list[dict[str, Any]] = []

    @contextmanager
    def start_as_current_span(self, name: str, *, context: Any, kind: Any) -> Iterator[Any]:
        parent = trace.get_current_span(context).get_span_context()
        span: dict[str, Any] = {"name": name, "trace": f"{parent.trace_id:032x}", "parent": f"{parent.span_id:016x}"}
        self.spans.append(span)

        class Span:
            def set_attribute(self, key: str, value: Any) -> None:
                span[key] = value

        yield Span()


def test_requests_are_spans_of_the_clients_trace(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    tracer = Tracer()
    monkeypatch.setattr(trace, "get_tracer", lambda _: tracer)
    headers = {"traceparent": f"00-{TRACE}-{PARENT}-01", "x-request-id": "r-1"}
    client.post("/v1/embeddings", json={"input": "a"}, headers=headers)
    client.post("/v1/embeddings", json={"input": []})
    first, second = tracer.spans
    assert (first["name"], first["trace"], first["parent"]) == ("POST /v1/embeddings", TRACE, PARENT)
    assert (first["http.response.status_code"], first["isorun.request_id"]) == (200, "r-1")
    assert (second["http.response.status_code"], second["http.route"]) == (400, "/v1/embeddings")
    assert second["trace"] != TRACE
