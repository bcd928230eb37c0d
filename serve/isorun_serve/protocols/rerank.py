"""Reranking in the form of Cohere, versions 1 and 2, and of Jina, whose answers hold the fields of one another."""

from __future__ import annotations

import json
import uuid
from typing import Annotated, Any

from fastapi import APIRouter
from pydantic import AfterValidator, Field, WithJsonSchema
from starlette.responses import Response

from isorun_serve.answers import json_answer
from isorun_serve.errors import ApiError
from isorun_serve.inputs import FirstError, KnownFields
from isorun_serve.models import Models
from isorun_serve.settings import Settings
from isorun_serve.texts import relevance


def _documents(documents: Any) -> Any:
    """Checks documents without a model for each: there may be a million, and their number is checked afterwards."""
    if not isinstance(documents, list):
        raise ValueError("expected a list of documents")  # noqa: TRY004 # of pydantic
    for position, document in enumerate(documents):
        text = document.get("text") if isinstance(document, dict) else document
        if not isinstance(text, str):
            raise ValueError(f"expected strings, or objects with a string in the field text, not so at {position}")  # noqa: TRY004
    return documents


_DOCUMENT = {"type": "object", "required": ["text"], "properties": {"text": {"type": "string"}}}
_DOCUMENTS = {"type": "array", "items": {"anyOf": [{"type": "string"}, _DOCUMENT]}}


class RerankRequest(KnownFields):
    """The body of a request."""

    query: str
    documents: Annotated[Any, AfterValidator(_documents), WithJsonSchema(_DOCUMENTS)] = Field(
        description="Texts, or objects with a field `text`, which is read; others are returned with it."
    )
    model: str | None = Field(None, description="The name of a served model. Default: the first that reranks.")
    top_n: int | None = Field(None, ge=1, description="How many documents to return. Default: all.")
    return_documents: bool = False
    max_tokens_per_doc: int | None = Field(None, ge=1, description="Accepted if it is not below the model's limit.")
    rank_fields: Annotated[list[str], FirstError()] | None = Field(None, description='Accepted if it is ["text"].')


def router(models: Models, settings: Settings) -> APIRouter:
    """``/v1/rerank`` and ``/v2/rerank``."""
    routes = APIRouter(tags=["Cohere and Jina"])

    async def rerank(request: RerankRequest, version: str) -> Response:
        served, encoder = models.reranker(request.model)
        limit = encoder.max_length
        if request.max_tokens_per_doc is not None and (limit is None or request.max_tokens_per_doc < limit):
            message = "max_tokens_per_doc cannot be set: the model has no limit. Omit it"
            if limit is not None:
                message = f"max_tokens_per_doc cannot be set below the model's limit of {limit} tokens. Omit it"
            raise ApiError(400, message, param="max_tokens_per_doc")
        if request.rank_fields not in (None, ["text"]):
            raise ApiError(400, 'rank_fields must be ["text"]. Put other fields into the text', param="rank_fields")
        texts = [item if isinstance(item, str) else item["text"] for item in request.documents]
        ranked, tokens = await relevance(
            # These protocols cut documents that are too long.
            *(served, encoder, settings, request.query, texts),
            truncate=True,
            field="documents",
        )
        results: list[dict[str, Any]] = [
            {"index": index, "relevance_score": score} for index, score in ranked[: request.top_n]
        ]
        if request.return_documents:
            whole = [{"text": item} if isinstance(item, str) else item for item in request.documents]
            _check_returnable(whole)
            results = [{**result, "document": whole[result["index"]]} for result in results]
        return json_answer(
            {
                "id": str(uuid.uuid4()),
                "model": served.name,
                "results": results,
                "meta": {"api_version": {"version": version}, "billed_units": {"search_units": 0}},
                "usage": {"total_tokens": tokens},
            }
        )

    @routes.post("/v1/rerank")
    async def rerank_v1(request: RerankRequest) -> Response:
        """Score documents for a query from 0 to 1, best first. Documents that are too long are cut."""
        return await rerank(request, "1")

    @routes.post("/v2/rerank")
    async def rerank_v2(request: RerankRequest) -> Response:
        """Score documents for a query from 0 to 1, best first. Documents that are too long are cut."""
        return await rerank(request, "2")

    return routes


def _check_returnable(documents: list[dict[str, Any]]) -> None:
    """Refuse documents with what an answer cannot hold: JSON has no NaN, and the encoder integers of 64 bits."""
    try:
        json.dumps(documents, allow_nan=False)
        json_answer(documents)
    except (TypeError, ValueError, RecursionError) as error:
        message = f"a document cannot be returned: {error}. Omit return_documents, or the field"
        raise ApiError(400, message, param="documents") from error
