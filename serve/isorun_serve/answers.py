"""Answers: JSON with arrays of numbers."""

from __future__ import annotations

from typing import Any

import orjson
from starlette.responses import Response


def json_answer(content: Any) -> Response:
    """A JSON answer, in which arrays may be those of NumPy."""
    return Response(orjson.dumps(content, option=orjson.OPT_SERIALIZE_NUMPY), media_type="application/json")
