"""Errors as clients see them: a status, and JSON in the form of the protocol."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

import orjson
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from isorun.errors import BackendFailed, DeadlineExceeded, IsorunError, QueueFull, SessionClosed

_logger = logging.getLogger("isorun.serve")


class ApiError(Exception):
    """A request that cannot be answered.

    Args:
        status: the HTTP status.
        message: what is wrong, and what to do.
        code: a short name, for protocols that have one.
        param: the field of the request that is wrong.
        headers: headers of the answer.
        is_limit: whether the request exceeds a limit, for which text-embeddings-inference has a status of its own.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str | None = None,
        param: str | None = None,
        headers: Mapping[str, str] | None = None,
        is_limit: bool = False,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.code = code
        self.param = param
        self.headers = dict(headers or {})
        self.is_limit = is_limit


def stopped() -> ApiError:
    """The error for a request that comes too late for a server that stops, or takes too long for it."""
    return ApiError(503, "The server has stopped. Send the request again", headers={"Retry-After": "1"})


def api_error(error: Exception) -> ApiError:
    """What a client is told of an error. Errors of the server are logged, and only named."""
    match error:
        case ApiError():
            return error
        case QueueFull():
            message = f"Overloaded: at most {error.limit} texts or rows may wait. Try again later"
            return ApiError(429, message, code="rate_limit_exceeded", headers={"Retry-After": "1"})
        case DeadlineExceeded():
            return ApiError(504, str(error), code="timeout")
        case SessionClosed():  # models are closed only when a server stops
            return stopped()
        case RequestValidationError():
            return _invalid(error)
        case HTTPException():
            messages = {404: "There is no such path. All paths are at /docs", 405: "The path has another method"}
            if error.__cause__ is not None:  # of FastAPI, which does not say what is wrong with a body
                messages[400] = f"The body cannot be read as JSON: {error.__cause__}"
            message = messages.get(error.status_code, str(error.detail))
            return ApiError(error.status_code, message, headers=error.headers)
        case IsorunError() if isinstance(error, ValueError):
            return ApiError(400, str(error))
    _logger.error("a request failed", exc_info=error)
    message = "The backend failed" if isinstance(error, BackendFailed) else "Internal error"
    return ApiError(500, f"{message}: {type(error).__name__}. The server's log says why", code="internal_error")


def _invalid(error: RequestValidationError) -> ApiError:
    first = error.errors()[0]
    if first["type"] == "json_invalid":
        return ApiError(400, f"The body must be valid JSON: {first['ctx']['error']}")
    path = [str(part) for part in first["loc"][1:]]
    if not path and first["type"] in ("missing", "model_attributes_type", "dict_type"):
        return ApiError(400, "The body must be a JSON object" + ", and is missing" * (first["type"] == "missing"))
    message = first["msg"].removeprefix("Value error, ")
    param = path[0] if path else first.get("ctx", {}).get("field")
    return ApiError(400, f"{'.'.join(path)}: {message}" if path else message, param=param)


def protocol_of(path: str) -> str:
    """The protocol of a path: ``openai``, ``cohere``, ``oip`` or ``tei``."""
    if path.startswith(("/v1/rerank", "/v2/rerank")):
        return "cohere"
    if path.startswith("/v1/"):
        return "openai"
    if path == "/v2" or path.startswith("/v2/"):
        return "oip"
    return "tei"


def error_response(error: Exception, path: str) -> Response:
    """The answer to a request that failed, in the form of its protocol."""
    told = api_error(error)
    protocol = protocol_of(path)
    status = 413 if told.is_limit and protocol == "tei" else told.status
    content = _FORMS[protocol](told, status)
    return Response(orjson.dumps(content), status, told.headers, "application/json")


def _openai(error: ApiError, status: int) -> dict[str, Any]:
    kinds = {401: "authentication_error", 429: "rate_limit_error"}
    kind = kinds.get(status, "server_error" if status >= 500 else "invalid_request_error")
    return {"error": {"message": error.message, "type": kind, "param": error.param, "code": error.code}}


def _tei(error: ApiError, status: int) -> dict[str, Any]:
    kinds = {429: "Overloaded", 503: "Unhealthy", 500: "Backend", 504: "Backend"}
    return {"error": error.message, "error_type": kinds.get(status, "Validation")}


_FORMS: Mapping[str, Callable[[ApiError, int], dict[str, Any]]] = {
    "openai": _openai,
    "tei": _tei,
    "cohere": lambda error, _: {"message": error.message},
    "oip": lambda error, _: {"error": error.message},
}
