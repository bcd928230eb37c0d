"""The Open Inference Protocol, version 2, with its extension for binary tensors: any model, by its tensors."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, Any, Literal, TypeVar

import numpy as np
import orjson
from fastapi import APIRouter, Request
from pydantic import Field, NonNegativeInt, StrictBool, StrictInt, ValidationError
from starlette.responses import JSONResponse, Response

import isorun
from isorun.errors import BackendFailed, did_you_mean
from isorun.types import TensorSpec
from isorun_serve import tensors
from isorun_serve.answers import json_answer
from isorun_serve.errors import ApiError
from isorun_serve.inputs import FirstError, KnownFields, check_lists
from isorun_serve.models import Models, Served
from isorun_serve.settings import Settings
from isorun_serve.texts import admission

_T = TypeVar("_T")
_logger = logging.getLogger("isorun.serve")
HEADER_LENGTH = "inference-header-content-length"
_VERSION = "1"
_ON_THE_LOOP = 1 << 16  # bytes of JSON, or values of an answer
_MAX_TENSORS = 2048  # of a request: to validate hundreds of thousands takes seconds, in which the server answers nobody


class Parameters(KnownFields):
    """What MLServer's clients add to everything: how its servers read tensors, which the datatype says."""

    content_type: Literal["np", "str"] | None = None


class InputParameters(Parameters):
    """The parameters of an input."""

    binary_data_size: StrictInt | None = None


class OutputParameters(Parameters):
    """The parameters of an output."""

    binary_data: StrictBool | None = None


class RequestParameters(Parameters):
    """The parameters of a request."""

    binary_data_output: StrictBool = False
    timeout: StrictInt | None = Field(
        default=None, gt=0, lt=2**64, description="Microseconds, as Triton's clients send it."
    )


class Input(KnownFields):
    """An input tensor."""

    name: str
    shape: Annotated[list[NonNegativeInt], FirstError()]
    datatype: str
    parameters: InputParameters = InputParameters()
    data: Any = None


class Output(KnownFields):
    """A requested output."""

    name: str
    parameters: OutputParameters = OutputParameters()


class InferRequest(KnownFields):
    """The JSON of a request."""

    id: str | None = None
    parameters: RequestParameters = RequestParameters()
    inputs: Annotated[list[Input], FirstError()] = Field(max_length=_MAX_TENSORS)
    outputs: Annotated[list[Output], FirstError()] = Field([], max_length=_MAX_TENSORS, description="Default: all.")


_TENSOR = {
    "type": "object",
    "required": ["name", "shape", "datatype"],
    "properties": {
        "name": {"type": "string"},
        "shape": {"type": "array", "items": {"type": "integer"}},
        "datatype": {"type": "string", "examples": ["FP32", "INT64", "BYTES"]},
        "data": {"type": "array", "items": {}},
        "parameters": {"type": "object"},
    },
}
_BODY = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {
                "schema": {
                    "type": "object",
                    "required": ["inputs"],
                    "properties": {
                        "id": {"type": "string"},
                        "parameters": {"type": "object"},
                        "inputs": {"type": "array", "items": _TENSOR},
                        "outputs": {"type": "array", "items": {"type": "object", "required": ["name"]}},
                    },
                }
            }
        },
    }
}


def router(models: Models, _: Settings) -> APIRouter:
    """The routes below ``/v2``."""
    # Of two routes of a function, the lower one is matched first: a name may have slashes.
    routes = APIRouter(prefix="/v2", tags=["Open Inference Protocol"])

    @routes.get("")
    async def server() -> Response:
        """Describe the server."""
        extensions = ["binary_tensor_data"]
        return json_answer({"name": "isorun", "version": isorun.__version__, "extensions": extensions})

    @routes.get("/health/live")
    async def live() -> Response:
        """Say that the process answers."""
        return JSONResponse({"live": True})

    @routes.get("/health/ready")
    async def ready(request: Request) -> Response:
        """Say whether requests are accepted."""
        is_ready = models.ready and not request.app.state.traffic.draining
        return JSONResponse({"ready": is_ready}, 200 if is_ready else 503)

    @routes.get("/models/{name:path}/ready")
    @routes.get("/models/{name:path}/versions/{version}/ready")
    async def model_ready(name: str, version: str = _VERSION) -> Response:
        """Say whether a model accepts requests."""
        served = _found(name, version)
        return JSONResponse({"name": served.name, "ready": True})

    @routes.get("/models/{name:path}")
    @routes.get("/models/{name:path}/versions/{version}")
    async def model(name: str, version: str = _VERSION) -> Response:
        """Describe a model's tensors."""
        served = _found(name, version)
        session = served.session
        return json_answer(
            {
                "name": served.name,
                "versions": [_VERSION],
                "platform": f"isorun_{served.provenance.backend}",
                "inputs": [_described(spec) for spec in session.model_info.inputs],
                "outputs": [_described(spec) for spec in session.get_outputs()],
            }
        )

    @routes.post("/models/{name:path}/infer", openapi_extra=_BODY)
    @routes.post("/models/{name:path}/versions/{version}/infer", openapi_extra=_BODY)
    async def infer(name: str, request: Request, version: str = _VERSION) -> Response:
        """Run a model: JSON, or with the header Inference-Header-Content-Length JSON and binary data."""
        served = _found(name, version)
        content, binary = _split(await request.body(), request.headers.get(HEADER_LENGTH))
        asked, feeds = await _off_loop(len(content), _read, content, binary, served)
        names = [output.name for output in asked.outputs]
        with admission(served), _tensors_that_fail():
            results = await served.session.arun(names, feeds, timeout=_seconds(asked))
        return await _off_loop(sum(np.size(result) for result in results), _answer, served, asked, results)

    def _found(name: str, version: str) -> Served:
        if version != _VERSION:
            raise ApiError(404, f"The model {name!r} has no version {version!r}, only {_VERSION!r}")
        model, _, path = name.rpartition("/")
        names = {served.name for served in models}
        if name not in names and model in names:  # Triton's clients ask for config and stats
            raise ApiError(404, f"The model {model!r} has no path /{path}. All paths are at /docs")
        return models.of_name(name)

    return routes


async def _off_loop(size: int, function: Callable[..., _T], *arguments: Any) -> _T:
    """Call a function; in another thread if its work is so large that the server would answer nobody meanwhile."""
    return await asyncio.to_thread(function, *arguments) if size > _ON_THE_LOOP else function(*arguments)


def _read(content: bytes, binary: bytes, served: Served) -> tuple[InferRequest, dict[str, tensors.Array]]:
    """A request with its outputs, all of them if it names none, and its feeds."""
    asked = _parsed(content)
    specs = _specs(served)
    if not asked.outputs:
        asked.outputs = [Output(name=name) for name in specs]
    _check(asked.outputs, specs)
    # Not model_dump(), which copies each nested list.
    inputs = [{**dict(tensor), "parameters": dict(tensor.parameters)} for tensor in asked.inputs]
    return asked, tensors.read(inputs, served.session.model_info.inputs, binary)


def _answer(served: Served, asked: InferRequest, results: list[Any]) -> Response:
    parts, specs = [], _specs(served)
    for output, result in zip(asked.outputs, results, strict=True):
        own = output.parameters.binary_data
        binary_output = asked.parameters.binary_data_output if own is None else own
        parts.append(tensors.write(specs[output.name], result, binary=binary_output))
    answer = {
        "model_name": served.name,
        "model_version": _VERSION,
        **({"id": asked.id} if asked.id is not None else {}),
        "outputs": [part for part, _ in parts],
    }
    data = b"".join(data for _, data in parts)
    if not any("parameters" in part for part, _ in parts):
        return json_answer(answer)
    header = orjson.dumps(answer, option=orjson.OPT_SERIALIZE_NUMPY)
    headers = {HEADER_LENGTH: str(len(header))}
    return Response(header + data, headers=headers, media_type="application/octet-stream")


def _specs(served: Served) -> dict[str, TensorSpec]:
    return {spec.name: spec for spec in served.session.get_outputs()}


def _split(body: bytes, header_length: str | None) -> tuple[bytes, bytes]:
    if header_length is None:
        return body, b""
    if not header_length.isdecimal() or float(header_length) > len(body):  # int() rejects long ones
        raise ApiError(400, f"{HEADER_LENGTH} must be a length of at most {len(body)}, got {header_length!r}")
    length = int(header_length)
    return body[:length], body[length:]


def _parsed(content: bytes) -> InferRequest:
    check_lists(content)
    try:
        return InferRequest.model_validate_json(content)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(map(str, first["loc"]))
        message = first["msg"].removeprefix("Value error, ")
        raise ApiError(400, f"{field}: {message}" if field else message) from error


def _check(outputs: list[Output], specs: dict[str, TensorSpec]) -> None:
    for output in outputs:
        if output.name not in specs:
            raise ApiError(400, f"The model has no output {output.name!r}{did_you_mean(output.name, specs)}")
        if not tensors.has_datatype(specs[output.name]):
            raise ApiError(
                400, f"The protocol has no datatype for the output {output.name!r} ({specs[output.name].type})"
            )


@contextmanager
def _tensors_that_fail() -> Iterator[None]:
    """Tell the client what the runtime says of its tensors, whose values nothing else checks. Whether they or the
    server are at fault, the runtime does not say."""
    try:
        yield
    except BackendFailed as error:
        if type(error) is not BackendFailed:  # of a worker, with its log
            raise
        _logger.warning("a run of a client's tensors failed", exc_info=error)
        raise ApiError(500, str(error)) from error


def _seconds(request: InferRequest) -> float | None:
    timeout = request.parameters.timeout
    return None if timeout is None else timeout / 1e6


def _described(spec: TensorSpec) -> dict[str, Any]:
    shape = [size if isinstance(size, int) else -1 for size in spec.shape or ()]
    return {"name": spec.name, "datatype": tensors.datatype(spec), "shape": shape}
