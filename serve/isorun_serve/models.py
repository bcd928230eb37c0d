"""The models of a server: what each does, and how a request finds its model."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from isorun.errors import BackendFailed, CacheError, InvalidFeeds, IsorunError, did_you_mean
from isorun.session.session import Session
from isorun.text.classifier import Classifier
from isorun.text.cross_encoder import CrossEncoder
from isorun.text.embedder import Embedder
from isorun.text.model import TextModel
from isorun.text.sparse_embedder import SparseEmbedder
from isorun.types import Provenance
from isorun_serve.errors import ApiError, stopped

_logger = logging.getLogger("isorun.serve")
EMBED, SPARSE, RERANK, CLASSIFY, TENSORS = "embed", "sparse", "rerank", "classify", "tensors"
TASKS = (EMBED, SPARSE, RERANK, CLASSIFY, TENSORS)
_LONGEST_WAIT = 30  # seconds that a client is told to wait


@dataclass(frozen=True)
class Served:
    """A model.

    Attributes:
        name: what clients call it.
        task: one of :data:`TASKS`.
        model: an :class:`isorun.Embedder`, ``SparseEmbedder``, ``CrossEncoder`` or ``Classifier``; ``None`` for tensors
            only.
        session: what runs it.
        close: releases it.
    """

    name: str
    task: str
    model: TextModel | None
    session: Session
    close: Callable[[], None]

    @classmethod
    def of(cls, name: str, opened: Embedder | SparseEmbedder | CrossEncoder | Classifier | Session) -> Served:
        """A model that is open."""
        if isinstance(opened, Session):
            return cls(name, TENSORS, None, opened, opened.close)
        tasks = {Embedder: EMBED, SparseEmbedder: SPARSE, CrossEncoder: RERANK, Classifier: CLASSIFY}
        task = tasks[type(opened)]
        return cls(name, task, opened, opened.session, opened.close)

    @cached_property
    def provenance(self) -> Provenance:
        """What runs, as the runtime reported it at the start."""
        return self.session.provenance

    def retry_after(self) -> str:
        """For the header ``Retry-After``: the time in seconds that what waits now will take."""
        metrics = self.session.metrics()
        rows = max(1.0, metrics.batch_rows.mean)
        seconds = metrics.waiting * metrics.run_seconds.mean / rows / self.session.concurrency
        return str(min(_LONGEST_WAIT, max(1, math.ceil(seconds))))


class Models:
    """The models of a server, by name.

    Attributes:
        accepting: whether requests are answered: not while it is measured how they best share the machine.
        ready: whether they are warm, so that no request waits for a compilation.
    """

    def __init__(self, models: Sequence[Served]) -> None:
        self._models: Mapping[str, Served] = {served.name: served for served in models}
        self.accepting = self.ready = self._closed = False

    def __iter__(self) -> Iterator[Served]:
        return iter(self._models.values())

    def of_name(self, name: str) -> Served:
        """The model of a name, for its tensors.

        Raises:
            ApiError: there is none, or requests are not accepted yet.
        """
        served = self._models.get(name)
        if served is None:
            message = f"There is no model {name!r}{did_you_mean(name, self._models)}"
            raise ApiError(404, message, code="model_not_found", param="model")
        self._check_ready()
        return served

    def embedder(self, name: str | None) -> tuple[Served, Embedder]:
        """A model for vectors: the one of that name, or the first.

        Raises:
            ApiError: there is none.
        """
        return self._of_type(name, Embedder, "embeds texts")

    def sparse_embedder(self, name: str | None) -> tuple[Served, SparseEmbedder]:
        """As :meth:`embedder`, for weights of words."""
        return self._of_type(name, SparseEmbedder, "makes sparse vectors")

    def reranker(self, name: str | None) -> tuple[Served, CrossEncoder]:
        """As :meth:`embedder`, for scores of pairs."""
        return self._of_type(name, CrossEncoder, "scores documents for a query")

    def classifier(self, name: str | None) -> tuple[Served, Classifier | CrossEncoder]:
        """As :meth:`embedder`, for classes; a model with one class may be a reranker."""
        return self._of_type(name, (Classifier, CrossEncoder), "classifies texts")

    def text_model(self, name: str | None) -> tuple[Served, TextModel]:
        """As :meth:`embedder`, for any model of texts."""
        return self._of_type(name, TextModel, "reads texts")

    def _of_type(self, name: str | None, kind: Any, what: str) -> tuple[Served, Any]:
        if name is not None:
            served = self.of_name(name)
            if isinstance(served.model, kind):
                return served, served.model
            raise ApiError(400, f"The model {name!r} ({served.task}) is not one that {what}", param="model")
        self._check_ready()
        for served in self:
            if isinstance(served.model, kind):
                return served, served.model
        names = ", ".join(f"{served.name} ({served.task})" for served in self)
        raise ApiError(404, f"No model of this server {what}: {names}", code="model_not_found", param="model")

    def _check_ready(self) -> None:
        if self._closed:
            raise stopped()
        if not self.accepting:
            raise ApiError(503, "The models are warming up. Try again later", headers={"Retry-After": "1"})

    def warm_up(self, *, measure: bool) -> None:
        """Measure all models, unless the cache has the results; then accept requests, and warm up the rest between
        them: :meth:`isorun.Session.warmup`."""
        for served in self:
            with named_in_errors(served.name):
                try:
                    served.session.warmup((), measure=measure)
                except CacheError as error:
                    raise CacheError(f"{error} With --no-measure, a read-only cache will do") from error
        self.accepting = True
        for served in self:
            with named_in_errors(served.name):
                try:
                    served.session.warmup(measure=False)
                except (InvalidFeeds, BackendFailed) as error:
                    if served.model is not None:  # of text, which has feeds that are known to be right
                        raise
                    _logger.warning("%s: not warmed up with random tensors: %s", served.name, error)

    def close(self) -> None:
        """Release all models."""
        self.accepting = self.ready = False
        self._closed = True
        for served in self:
            served.close()


@contextmanager
def named_in_errors(model: str) -> Iterator[None]:
    """Put the model's name in front of errors."""
    try:
        yield
    except IsorunError as error:
        error.args = (f"{model}: {error}", *error.args[1:])
        raise
