"""Reranking in the form of Cohere, versions 1 and 2, and of Jina, whose answers hold the fields of one another."""

from __future__ import annotations

import json
import uuid
from typing import Annotated, Any

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field, WithJsonSchema, model_validator
from starlette.responses import Response

from isorun_serve.answers import json_answer
from isorun_serve.errors import ApiError
from isorun_serve.inputs import FirstError, KnownFields
from isorun_serve.models import Models
from isorun_serve.settings import Settings
from isorun_serve.texts import relevance


class Document(BaseModel):
    """A document with fields, of which the text is read, and the others are returned with it."""

    model_config = ConfigDict(extra="allow")
    text: str

    @model_validator(mode="before")
    @classmethod
    def _of_text(cls, document: Any) -> Any:
        if isinstance(document, str):
            return {"text": document}
        if not isinstance(document, dict):
            raise ValueError("expected a string, or an object with the field text")  # noqa: TRY004 # of pydantic
        return document


_DOCUMENT = {"type": "object", "required": ["text"], "properties": {"text": {"type": "string"}}}
_DOCUMENTS = {"type": "array", "items": {"anyOf": [{"type": "string"}, _DOCUMENT]}}


class RerankRequest(KnownFields):
    """The body of a request."""

    query: str
    documents: Annotated[list[Document], FirstError(), WithJsonSchema(_DOCUMENTS)]
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
            message = f"max_tokens_per_doc cannot be set below the model's limit of {limit} tokens. Omit it"
            raise ApiError(400, message, param="max_tokens_per_doc")
        if request.rank_fields not in (None, ["text"]):
            raise ApiError(400, 'rank_fields must be ["text"]. Put other fields into the text', param="rank_fields")
        texts = [document.text for document in request.documents]
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
            whole = [document.model_dump() for document in request.documents]
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
