"""OpenAI's embeddings and list of models."""

from __future__ import annotations

import base64
import time
from typing import Any, Literal

import numpy as np
from fastapi import APIRouter
from pydantic import Field
from starlette.responses import Response

from isorun_serve.answers import finite, json_answer
from isorun_serve.inputs import KnownFields, TextsOrIds, as_list
from isorun_serve.models import Models, Served
from isorun_serve.settings import Settings
from isorun_serve.texts import admission, check_dimensions, encoded, encoder_of


class EmbeddingsRequest(KnownFields):
    """The body of a request for embeddings."""

    input: TextsOrIds = Field(
        description="A text or a list of texts; or the token ids of the served model's own tokenizer, special tokens "
        "included, for one text or for several."
    )
    model: str | None = Field(None, description="The name of a served model. Default: the first that embeds.")
    dimensions: int | None = Field(None, ge=1, description="Keep that many dimensions, scaled to length 1 again.")
    encoding_format: Literal["float", "base64"] = "float"
    prompt_name: str | None = Field(
        None, description="The name of the prompt to put before each text. Not of OpenAI. Default: the model's, if any."
    )
    user: str | None = Field(None, description="Not used.")


def router(models: Models, settings: Settings) -> APIRouter:
    """The routes below ``/v1``."""
    routes = APIRouter(prefix="/v1", tags=["OpenAI"])
    started = int(time.time())

    def about(served: Served) -> dict[str, Any]:
        return {"id": served.name, "object": "model", "created": started, "owned_by": "isorun", "task": served.task}

    @routes.get("/models")
    async def list_models() -> Response:
        """List the models."""
        return json_answer({"object": "list", "data": [about(served) for served in models]})

    @routes.get("/models/{name:path}")
    async def get_model(name: str) -> Response:
        """Describe a model."""
        return json_answer(about(models.of_name(name)))

    @routes.post("/embeddings")
    async def embeddings(request: EmbeddingsRequest) -> Response:
        """Embed texts."""
        served, embedder = models.embedder(request.model)
        check_dimensions(embedder, request.dimensions)
        items = as_list(request.input)
        encode = encoder_of(embedder, items, request.prompt_name)
        tokens = await encoded(served, settings, items, encode, truncate=None, field="input")
        with admission(served, "input"):
            vectors = await embedder.aembed(
                tokens,
                truncate_dim=request.dimensions,
                normalize=True if request.dimensions and embedder.normalizes else None,
            )
        as_text = request.encoding_format == "base64"
        if not as_text:
            finite(vectors, "A vector")
        data = [
            {"object": "embedding", "index": index, "embedding": _base64(vector) if as_text else vector}
            for index, vector in enumerate(vectors)
        ]
        total = sum(tokens.lengths)
        usage = {"prompt_tokens": total, "total_tokens": total}
        return json_answer({"object": "list", "data": data, "model": served.name, "usage": usage})

    return routes


def _base64(vector: np.ndarray) -> str:
    return base64.b64encode(vector.astype("<f4", copy=False).tobytes()).decode()
