"""The protocol of text-embeddings-inference."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any, Literal

import numpy as np
from fastapi import APIRouter, Body
from fastapi.exceptions import RequestValidationError
from pydantic import Field, TypeAdapter, ValidationError
from starlette.responses import Response

import isorun
from isorun.text.classifier import Class
from isorun.text.cross_encoder import CrossEncoder
from isorun.text.embedder import Embedder
from isorun.text.prompted import PromptedModel
from isorun.text.sparse_embedder import SparseEmbedder
from isorun_serve.answers import finite, json_answer
from isorun_serve.errors import ApiError, api_error
from isorun_serve.inputs import FirstError, Ids, KnownFields, TextOrPairs, Texts, TextsOrIds, as_list
from isorun_serve.models import EMBED, RERANK, SPARSE, Models, Served
from isorun_serve.settings import Settings
from isorun_serve.texts import (
    admission,
    check_characters,
    check_count,
    check_dimensions,
    check_prompt,
    check_tokens,
    encoded,
    encoder_of,
    relevance,
)

_OF_ONE_CLASS = {"sigmoid": "Sigmoid", "none": "Identity"}


class _Named(KnownFields):
    model: str | None = Field(None, description="The name of a served model. Default: the first for the task.")
    options: dict[str, Any] | None = Field(None, description="Not used: for Hugging Face's own servers.")


class _Request(_Named):
    truncate: bool | None = Field(None, description="Cut texts that are too long. Default: as the server was started.")
    truncation_direction: Literal["right", "left", "Right", "Left"] | None = Field(
        None, description="Must be the model's own."
    )


class EmbedRequest(_Request):
    """The body of a request for vectors."""

    inputs: TextsOrIds
    normalize: bool = Field(True, description="Scale vectors to length 1.")
    prompt_name: str | None = Field(None, description="The name of the prompt to put before each text.")
    dimensions: int | None = Field(None, ge=1, description="Keep that many dimensions.")


class SparseRequest(_Request):
    """The body of a request for sparse vectors."""

    inputs: TextsOrIds
    prompt_name: str | None = Field(None, description="The name of the prompt to put before each text.")


class PredictParameters(KnownFields):
    """The parameters of Hugging Face's clients for text classification."""

    top_k: int | None = Field(default=None, ge=1, description="How many classes to return. Default: all.")
    function_to_apply: Literal["sigmoid", "softmax", "none"] | None = Field(
        default=None, description="What makes scores of logits. Default: as the model says."
    )


class PredictRequest(_Request):
    """The body of a request for classes."""

    inputs: TextOrPairs
    raw_scores: bool = Field(False, description='Return logits, as the function "none".')
    parameters: PredictParameters = PredictParameters()


class RerankRequest(_Request):
    """The body of a request for scores."""

    query: str
    texts: Annotated[list[str], FirstError()]
    raw_scores: bool = Field(False, description="Return logits.")
    return_text: bool = False


class TokenizeRequest(_Named):
    """The body of a request for tokens."""

    inputs: Texts
    add_special_tokens: bool = True
    prompt_name: str | None = Field(None, description="The name of the prompt to put before each text.")


class DecodeRequest(_Named):
    """The body of a request for the texts of token ids."""

    ids: Ids
    skip_special_tokens: bool = True


def router(models: Models, settings: Settings) -> APIRouter:
    """The routes at the root."""
    routes = APIRouter(tags=["text-embeddings-inference"])

    @routes.post("/embed")
    async def embed(request: EmbedRequest) -> Response:
        """Embed texts."""
        served, embedder = models.embedder(request.model)
        _check_direction(served, request)
        check_dimensions(embedder, request.dimensions)
        items = as_list(request.inputs)
        encode = encoder_of(embedder, items, request.prompt_name)
        tokens = await encoded(served, settings, items, encode, truncate=request.truncate, field="inputs")
        with admission(served, "inputs"):
            vectors = await embedder.aembed(tokens, normalize=request.normalize, truncate_dim=request.dimensions)
        return json_answer(list(finite(vectors, "A vector")))

    @routes.post("/embed_sparse")
    async def embed_sparse(request: SparseRequest) -> Response:
        """Weigh the words of texts: numbers of words with their weights."""
        served, embedder = models.sparse_embedder(request.model)
        _check_direction(served, request)
        items = as_list(request.inputs)
        encode = encoder_of(embedder, items, request.prompt_name)
        tokens = await encoded(served, settings, items, encode, truncate=request.truncate, field="inputs")
        with admission(served, "inputs"):
            vectors = await embedder.aembed(tokens)
        weights = [finite(row.values, "A vector").tolist() for row in vectors]
        rows = (zip(row.indices.tolist(), values, strict=True) for row, values in zip(vectors, weights, strict=True))
        return json_answer([[{"index": index, "value": value} for index, value in row] for row in rows])

    @routes.post("/predict")
    async def predict(request: PredictRequest) -> Response:
        """Classify texts or pairs."""
        served, classifier = models.classifier(request.model)
        _check_direction(served, request)
        function = _function(request, one_class=len(classifier.labels) == 1)
        batch, items = _texts_and_pairs(request.inputs)
        tokens = await encoded(served, settings, items, classifier.encode, truncate=request.truncate, field="inputs")
        with admission(served, "inputs"):
            if isinstance(classifier, CrossEncoder):
                scores = await classifier.apredict(tokens, activation=_OF_ONE_CLASS[function or "sigmoid"])
                classes = [[Class(classifier.labels[0], float(score))] for score in scores]
            else:
                top_k = request.parameters.top_k
                classes = await classifier.aclassify(tokens, top_k=top_k, function=function)
        finite(np.array([score for row in classes for _, score in row]), "A score")
        answers = [[{"score": score, "label": label} for label, score in row] for row in classes]
        return json_answer(answers if batch else answers[0])

    @routes.post("/rerank")
    async def rerank(request: RerankRequest) -> Response:
        """Score texts for a query, best first: from 0 to 1, unless `raw_scores` is set."""
        served, encoder = models.reranker(request.model)
        _check_direction(served, request)
        ranked, _ = await relevance(
            served,
            encoder,
            settings,
            request.query,
            request.texts,
            truncate=request.truncate,
            field="texts",
            raw=request.raw_scores,
        )
        answers: list[dict[str, Any]] = [{"index": index, "score": score} for index, score in ranked]
        if request.return_text:
            answers = [{**answer, "text": request.texts[answer["index"]]} for answer in answers]
        return json_answer(answers)

    @routes.post("/tokenize")
    async def tokenize(request: TokenizeRequest) -> Response:
        """The tokens of texts, with their positions, before any truncation."""
        _, model = models.text_model(request.model)
        texts = [request.inputs] if isinstance(request.inputs, str) else request.inputs
        check_count(settings, len(texts), "inputs")
        check_characters(settings, texts, "inputs")
        prompt = ""
        check_prompt(model, request.prompt_name)
        if isinstance(model, PromptedModel) and (name := request.prompt_name or model.default_prompt) is not None:
            prompt = model.prompts[name]

        def tokens() -> list[list[dict[str, Any]]]:
            # Texts are tokenized only up to the limit: millions of tokens would take half a minute to be counted.
            limit = settings.max_tokens + model.tokenizer.added_tokens() + 1
            answers, count = [], 0
            for text in texts:
                (encoding,) = model.tokenizer.encodings([prompt + text], limit, offsets=True)
                count += len(encoding)
                check_tokens(settings, count, "inputs")
                answers.append(_tokens(prompt + text, encoding, special=request.add_special_tokens))
            return answers

        return json_answer(await asyncio.to_thread(tokens))

    @routes.post("/decode")
    async def decode(request: DecodeRequest) -> Response:
        """The texts of token ids."""
        _, model = models.text_model(request.model)
        library = model.tokenizer.library
        items: Any = request.ids if request.ids and isinstance(request.ids[0], list) else [request.ids]
        check_count(settings, len(items), "ids")
        check_tokens(settings, sum(map(len, items)), "ids")
        size = library.get_vocab_size()
        if any(not 0 <= number < size for item in items for number in item):
            raise ApiError(400, f"ids must be from 0 to {size - 1}", param="ids")
        skipped = request.skip_special_tokens
        return json_answer(await asyncio.to_thread(library.decode_batch, items, skip_special_tokens=skipped))

    @routes.get("/info")
    async def info() -> Response:
        """The first model, and the limits of the server."""
        served = next(iter(models))
        provenance = served.provenance
        return json_answer(
            {
                "model_id": served.name,
                "model_sha": provenance.fingerprint,
                "model_dtype": provenance.precision,
                "model_type": _kind(served),
                "max_concurrent_requests": settings.max_requests,
                "max_input_length": served.model.max_length if served.model else None,
                "max_batch_tokens": served.session.concurrency_plan.batch_tokens,
                "max_batch_requests": None,
                "max_client_batch_size": settings.max_texts,
                "auto_truncate": settings.auto_truncate,
                "tokenization_workers": 1,
                "version": isorun.__version__,
                "sha": None,
                "docker_label": None,
                "backend": provenance.backend,
                "models": [{"model_id": listed.name, "task": listed.task} for listed in models],
            }
        )

    @routes.post("/", include_in_schema=False)
    async def root(body: Annotated[dict[str, Any], Body()]) -> Response:
        """What the first model is for, which clients of Hugging Face's inference API call."""
        first = next(iter(models))
        if first.task == EMBED:
            return await embed(_parsed(EmbedRequest, body, first))
        if first.task == SPARSE:
            return await embed_sparse(_parsed(SparseRequest, body, first))
        if first.task == RERANK and "query" in body:
            return await rerank(_parsed(RerankRequest, body, first))
        return await predict(_parsed(PredictRequest, body, first))

    return routes


def _parsed(kind: Any, body: dict[str, Any], served: Served) -> Any:
    try:
        return TypeAdapter(kind).validate_python(body)
    except ValidationError as error:
        entries = [{**entry, "loc": ("body", *entry["loc"])} for entry in error.errors()]
        message = api_error(RequestValidationError(entries)).message
        raise ApiError(400, f"{message}. The path / is that of {served.name} ({served.task})") from error


def _function(request: PredictRequest, *, one_class: bool) -> str | None:
    """What makes scores of logits; ``None`` for the model's own."""
    function = request.parameters.function_to_apply
    if request.raw_scores and function not in (None, "none"):
        raise ApiError(400, f"raw_scores returns logits, and function_to_apply is {function!r}. Omit one of them")
    if one_class and function == "softmax":
        raise ApiError(400, "function_to_apply cannot be 'softmax': of one class, it is 1 for every text")
    return "none" if request.raw_scores else function


def _check_direction(served: Served, request: _Request) -> None:
    assert served.model is not None
    side = served.model.tokenizer.settings.truncation_side
    if request.truncation_direction is not None and request.truncation_direction.lower() != side:
        raise ApiError(
            400,
            f"truncation_direction must be {side!r}, the model's own, got {request.truncation_direction!r}",
            param="truncation_direction",
        )


def _texts_and_pairs(inputs: Any) -> tuple[bool, list[Any]]:
    """Whether several were sent, and the texts and pairs."""
    if isinstance(inputs, str):
        return False, [inputs]
    several = isinstance(inputs[0], list)
    return several, [item[0] if len(item) == 1 else tuple(item) for item in (inputs if several else [inputs])]


def _tokens(text: str, encoding: Any, *, special: bool) -> list[dict[str, Any]]:
    tokens = []
    rows = zip(encoding.ids, encoding.tokens, encoding.special_tokens_mask, encoding.offsets, strict=True)
    for number, token, is_special, (start, stop) in rows:
        if is_special and special:
            tokens.append({"id": number, "text": token, "special": True, "start": None, "stop": None})
        elif not is_special:
            tokens.append({"id": number, "text": text[start:stop], "special": False, "start": start, "stop": stop})
    return tokens


def _kind(served: Served) -> dict[str, Any]:
    if isinstance(served.model, Embedder):
        return {"embedding": {"pooling": "+".join(served.model.pooling)}}
    if isinstance(served.model, SparseEmbedder):
        return {"embedding": {"pooling": "splade"}}
    labels = getattr(served.model, "labels", [])
    by_number = {str(index): label for index, label in enumerate(labels)}
    by_label = {label: index for index, label in enumerate(labels)}
    kind = "reranker" if served.task == RERANK else "classifier"
    return {kind: {"id2label": by_number, "label2id": by_label}} if labels else {}
