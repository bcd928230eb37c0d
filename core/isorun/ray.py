"""Ray Data and Ray Serve on isorun: callable classes for ``Dataset.map_batches``, and deployments.

Each actor or replica has one session, with as many threads as it has CPUs in Ray, unless ``threads`` is given. Ray's
own OMP_NUM_THREADS does not limit it.
"""

from __future__ import annotations

import asyncio
import os
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import ray
from ray import serve
from ray.serve import metrics
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from isorun.errors import InvalidFeeds, IsorunError, QueueFull
from isorun.session.session import Session
from isorun.text.embedder import Embedder

Columns = Mapping[str, npt.NDArray[Any]]

_COUNTS = ("requests", "failed", "rejected", "late", "waiting", "running", "tokens", "padding")
_HEALTH_SECONDS = 10
_DRAIN_SECONDS = 60


class Embed:
    """Adds the vectors of a column of texts to each batch.

    ::

        dataset.map_batches(
            Embed,
            fn_constructor_args=["all-MiniLM-L6-v2"],
            batch_size=4096,
            num_cpus=4,
            compute=ray.data.ActorPoolStrategy(size=2),
        )

    Within a batch, texts of similar length run together, up to ``batch_tokens`` of the embedder.

    Args:
        model: as for :class:`isorun.Embedder`.
        column: has the texts.
        output: receives the vectors, (dimension,), float32.
        options: other arguments of :class:`isorun.Embedder`.
    """

    def __init__(
        self, model: str | os.PathLike[str], *, column: str = "text", output: str = "embedding", **options: Any
    ) -> None:
        self._column, self._output = column, output
        self.embedder: Embedder = Embedder(model, **{**assigned_threads(), **options})

    def __call__(self, batch: Columns) -> dict[str, Any]:
        """The columns of a batch, and the vectors."""
        return _with(batch, {self._output: self.embedder.embed(_column(batch, self._column), progress=False)})


class Infer:
    """Runs a model whose inputs are columns, and adds its outputs to each batch.

    A row has the arrays of one request without a batch axis. Rows of similar length run together.

    Args:
        model: as for :class:`isorun.Session`.
        max_tokens: the maximum size of a batch of the model, rows times its longest row; ``None`` as for
            :meth:`isorun.Session.map`.
        options: other arguments of :class:`isorun.Session`, such as ``backend`` and ``outputs``.
    """

    def __init__(self, model: str | os.PathLike[str], *, max_tokens: int | None = None, **options: Any) -> None:
        self._max_tokens = max_tokens
        self.session: Session = Session(model, **{**assigned_threads(), **options})

    def __call__(self, batch: Columns) -> dict[str, Any]:
        """The columns of a batch, and the outputs: arrays, or columns of arrays where rows differ in length."""
        columns = {spec.name: _column(batch, spec.name) for spec in self.session.get_inputs()}
        names = [spec.name for spec in self.session.get_outputs()]
        rows = list(zip(*columns.values(), strict=True))
        requests = ({name: np.asarray(value) for name, value in zip(columns, row, strict=True)} for row in rows)
        with self.session.map(requests, max_tokens=self._max_tokens) as results:
            outputs = list(zip(*results, strict=True)) if rows else [()] * len(names)
        return _with(batch, {name: _stacked(values) for name, values in zip(names, outputs, strict=True)})


class _Server(ABC):
    """A replica: requests share the machine by the scheduler of its session."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._gauges = {
            name: metrics.Gauge(f"isorun_{name}", description=f"`{name}` of isorun.Session.metrics()")
            for name in _COUNTS
        }

    async def __call__(self, request: Request) -> Response:
        """Answer a POST with JSON; 400 if it is invalid, 429 if too many requests wait, 500 if the backend fails."""
        try:
            answer = await self._answer(await request.json())
        except QueueFull as error:
            return JSONResponse({"error": str(error)}, 429, {"Retry-After": "1"})
        except ValueError as error:  # invalid feeds and arguments are ones, too
            return JSONResponse({"error": str(error)}, 400)
        except IsorunError as error:
            return JSONResponse({"error": str(error)}, 500)
        try:
            return JSONResponse(answer)
        except ValueError:
            return JSONResponse({"error": "The outputs have NaN or infinity, which JSON cannot hold"}, 500)

    @abstractmethod
    async def _answer(self, content: Any) -> Any:
        """The answer to a request's JSON, as plain data."""

    async def check_health(self) -> None:
        """Fail if the session no longer answers, so that Serve replaces the replica; and report the metrics."""
        await asyncio.to_thread(self._probe)
        figures = self._session.metrics()
        for name, gauge in self._gauges.items():
            gauge.set(getattr(figures, name))

    @abstractmethod
    def _probe(self) -> None:
        """Run something; raises if the session no longer answers."""

    def __del__(self) -> None:
        """Called when Serve has drained the replica, which waits for the requests that it has accepted."""
        if session := getattr(self, "_session", None):
            session.close()


class _EmbedderServer(_Server):
    """Embeds texts: POST a JSON list of texts, or call ``handle.embed.remote(texts)``.

    Args:
        model: as for :class:`isorun.Embedder`.
        options: its other arguments. ``max_queue`` limits how many texts wait.
    """

    def __init__(self, model: str | os.PathLike[str], **options: Any) -> None:
        self.embedder = Embedder(model, **{**assigned_threads(), **options})
        self.embedder.warmup()
        super().__init__(self.embedder.session)

    async def embed(self, texts: list[str]) -> npt.NDArray[np.float32]:
        """(number of texts, dimension), float32."""
        return await self.embedder.aembed(texts)

    async def _answer(self, content: Any) -> Any:
        return (await self.embed(content)).tolist()

    def _probe(self) -> None:
        self._session.run(None, self.embedder.feeds(self.embedder.tokens(["a"])))


class _SessionServer(_Server):
    """Runs a model: POST JSON with a nested list for each input, or call ``handle.run.remote(feeds)``.

    Args:
        model: as for :class:`isorun.Session`.
        options: its other arguments. ``max_queue`` limits how many rows wait.
    """

    def __init__(self, model: str | os.PathLike[str], **options: Any) -> None:
        session = Session(model, **{**assigned_threads(), **options})
        session.warmup()
        self._probed: Mapping[str, Any] | None = None
        super().__init__(session)

    async def run(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
        """The outputs by name. Lists become arrays of the inputs' types, if these hold their values."""
        outputs = await self._session.arun(None, feeds)
        self._probed = feeds
        return dict(zip((spec.name for spec in self._session.get_outputs()), outputs, strict=True))

    async def _answer(self, content: Any) -> Any:
        return _plain(await self.run(content))

    def _probe(self) -> None:
        """Run the last request that succeeded again: only the caller knows valid ones."""
        if self._probed is not None:
            self._session.run(None, self._probed)


def _deployed(server: type[_Server], name: str) -> serve.Deployment:
    return serve.deployment(
        name=name,
        max_ongoing_requests=256,
        health_check_period_s=_HEALTH_SECONDS,
        graceful_shutdown_timeout_s=_DRAIN_SECONDS,
    )(server)


EmbedderServer = _deployed(_EmbedderServer, "EmbedderServer")
"""The deployment of an :class:`isorun.Embedder`: ``EmbedderServer.bind(model, **options)``. ``options()`` of Serve
changes the number of replicas and their CPUs."""

SessionServer = _deployed(_SessionServer, "SessionServer")
"""The deployment of an :class:`isorun.Session`: ``SessionServer.bind(model, **options)``."""


def assigned_threads() -> dict[str, int]:
    """As many threads as the actor has CPUs; the backend's default for one with a GPU, or without CPUs of its own."""
    assigned = ray.get_runtime_context().get_assigned_resources()
    cpus = assigned.get("CPU", 0)
    return {} if assigned.get("GPU") or not cpus else {"threads": max(1, int(cpus))}


def _plain(value: Any) -> Any:
    """An output as plain data; ONNX has sequences and maps, too, such as the probabilities of scikit-learn's models."""
    match value:
        case dict():
            return {key: _plain(item) for key, item in value.items()}
        case list():
            return [_plain(item) for item in value]
        case np.ndarray() | np.generic():
            return value.tolist()
    return value


def _column(batch: Columns, name: str) -> npt.NDArray[Any]:
    if not hasattr(batch, "keys"):
        kind = type(batch).__name__
        raise InvalidFeeds(f"Batches must be mappings of columns to arrays, got {kind}. Use batch_format='numpy'")
    if name not in batch:
        raise InvalidFeeds(f"The dataset has no column {name!r} (columns: {', '.join(batch)})")
    return batch[name]


def _with(batch: Columns, added: dict[str, Any]) -> dict[str, Any]:
    for name in added:
        if name in batch:
            raise InvalidFeeds(f"The dataset has a column {name!r} already, which the output would replace. Rename it")
    return {**batch, **added}


def _stacked(values: tuple[npt.NDArray[Any], ...]) -> npt.NDArray[Any]:
    if len({value.shape for value in values}) == 1:
        return np.stack(values)
    column = np.empty(len(values), dtype=object)
    for row, value in enumerate(values):  # NumPy would join arrays that are as long along their first axis
        column[row] = value
    return column
