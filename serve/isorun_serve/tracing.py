"""Spans of OpenTelemetry, if its API is installed: one for each request, in the trace that the client names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol


class Span(Protocol):
    """What is recorded of a request."""

    def set_attribute(self, key: str, value: Any) -> None:
        """Add an attribute."""


class _NoSpan:
    def set_attribute(self, key: str, value: Any) -> None:
        pass


try:
    from opentelemetry import propagate, trace
except ModuleNotFoundError:

    @contextmanager
    def span(name: str, headers: Mapping[str, str]) -> Iterator[Span]:  # noqa: ARG001  # as below
        """No span."""
        yield _NoSpan()

else:

    @contextmanager
    def span(name: str, headers: Mapping[str, str]) -> Iterator[Span]:
        """A span of a request, below the one in its headers."""
        context = propagate.extract(headers)
        tracer = trace.get_tracer("isorun.serve")
        with tracer.start_as_current_span(name, context=context, kind=trace.SpanKind.SERVER) as current:
            yield current
