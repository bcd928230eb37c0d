"""Answers: JSON with arrays of numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import orjson
from starlette.responses import Response

from isorun_serve.errors import ApiError


def json_answer(content: Any) -> Response:
    """A JSON answer, in which arrays may be those of NumPy."""
    return Response(orjson.dumps(content, option=orjson.OPT_SERIALIZE_NUMPY), media_type="application/json")


def finite(array: npt.NDArray[Any], what: str, instead: str = "") -> npt.NDArray[Any]:
    """The array, for JSON, which has no other numbers: they would become ``null``.

    Args:
        array: numbers.
        what: their name, for the message.
        instead: what a client can do about it.

    Raises:
        ApiError: it has NaN or infinity.
    """
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise ApiError(500, f"{what} has NaN or infinity, which JSON cannot hold{instead}")
    return array
