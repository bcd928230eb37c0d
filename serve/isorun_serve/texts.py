"""The texts of a request: limits, tokens, and running them as one call that is admitted whole or not at all."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np

from isorun.errors import InvalidFeeds, QueueFull, did_you_mean
from isorun.text.cross_encoder import CrossEncoder
from isorun.text.embedder import Embedder
from isorun.text.encoded import Encoded
from isorun.text.inputs import checked
from isorun.text.model import TextModel
from isorun.text.prompted import PromptedModel
from isorun_serve.answers import finite
from isorun_serve.errors import ApiError
from isorun_serve.inputs import are_ids
from isorun_serve.models import Served
from isorun_serve.settings import Settings

_ON_THIS_THREAD = 10_000  # characters; more are tokenized off the event loop


async def encoded(
    served: Served,
    settings: Settings,
    texts: Sequence[Any],
    encode: Callable[[Sequence[Any]], Encoded],
    *,
    truncate: bool | None,
    field: str,
) -> Encoded:
    """The tokens of a request's texts.

    Args:
        served: the model.
        settings: the limits.
        texts: texts, pairs, or token ids.
        encode: of the model.
        truncate: whether texts may be cut; ``None`` for what the server does.
        field: where they are in the request, for messages.

    Raises:
        ApiError: a limit is exceeded, a text is invalid, or the model is overloaded.
    """
    check_count(settings, len(texts), field)
    check_characters(settings, texts, field)
    if are_ids(texts):
        _check_ids(served, texts, field)
    with admission(served, field):
        served.session.check_room(len(texts))
        if sum(sum(map(len, _parts(text))) for text in texts) <= _ON_THIS_THREAD:
            tokens = encode(texts)
        else:
            tokens = await asyncio.to_thread(encode, texts)
    if tokens.truncated and not (settings.auto_truncate if truncate is None else truncate):
        advice = "start the server with --auto-truncate" if truncate is None else "set truncate to true"
        raise too_long(served, f"{field}[{tokens.truncated[0]}]", field, f"Shorten it, or {advice}")
    check_tokens(settings, sum(tokens.lengths), field)
    return tokens


def encoder_of(
    model: PromptedModel, items: Sequence[Any], prompt_name: str | None
) -> Callable[[Sequence[Any]], Encoded]:
    """What encodes the texts or the token ids of a request.

    Raises:
        ApiError: the model has no such prompt, or one is named for token ids.
    """
    if not are_ids(items):
        check_prompt(model, prompt_name)
        return partial(model.encode, prompt_name=prompt_name)
    if prompt_name is not None:
        raise ApiError(400, "prompt_name is for texts, not for token ids. Omit it", param="prompt_name")
    return model.encode_ids


def check_prompt(model: TextModel, name: str | None) -> None:
    """Reject the name of a prompt that a model does not have."""
    prompts = model.prompts if isinstance(model, PromptedModel) else {}
    if name is not None and name not in prompts:
        raise ApiError(400, f"The model has no prompt {name!r}{did_you_mean(name, prompts)}", param="prompt_name")


def check_dimensions(embedder: Embedder, dimensions: int | None) -> None:
    """Reject more dimensions than an embedder has, by the name that requests have for them."""
    if dimensions is not None and dimensions > embedder.dimension:
        message = f"dimensions must be from 1 to {embedder.dimension}, the model's dimension, got {dimensions}"
        raise ApiError(400, message, param="dimensions")


def check_count(settings: Settings, count: int, field: str) -> None:
    """Reject a request without texts, or with too many.

    Raises:
        ApiError: it has.
    """
    if count == 0:
        raise ApiError(400, f"{field} must not be empty", param=field)
    if count > settings.max_texts:
        message = f"{field} must have at most {settings.max_texts} texts, got {count}. Send several requests"
        raise ApiError(400, message, param=field, is_limit=True)


def check_tokens(settings: Settings, count: int, field: str) -> None:
    """Reject a request with too many tokens.

    Raises:
        ApiError: it has.
    """
    if count > settings.max_tokens:
        limit = settings.max_tokens
        message = f"{field} must have at most {limit} tokens in all, got at least {count}. Send several requests"
        raise ApiError(400, message, param=field, is_limit=True)


def check_characters(settings: Settings, texts: Sequence[Any], field: str) -> None:
    """Reject texts that take too long to tokenize, even if they are cut afterwards, and those that are not Unicode.

    Args:
        settings: the limits.
        texts: texts, pairs, or token ids, whose number is limited elsewhere.
        field: where they are in the request, for messages.

    Raises:
        ApiError: a text exceeds the limit of characters, or all of them that of a request, where the query of a
            reranker counts for each document; or a text has half of a character.
    """
    total = 0
    for position, text in enumerate(texts):
        if not isinstance(text, list):
            total += sum(_checked_length(settings, part, f"{field}[{position}]", field) for part in _parts(text))
    if total > settings.max_body:
        raise ApiError(
            400,
            f"{field} must have at most {settings.max_body} characters in all, with the query for each document, got "
            f"{total}. Send several requests",
            param=field,
            is_limit=True,
        )


def _checked_length(settings: Settings, text: str, where: str, field: str) -> int:
    limit = settings.max_characters
    if len(text) > limit:
        message = f"{where} must have at most {limit} characters, got {len(text)}. Split the text"
        raise ApiError(400, message, param=field, is_limit=True)
    try:
        checked(text, where)
    except InvalidFeeds as error:
        raise ApiError(400, str(error), param=field) from error
    return len(text)


def _check_ids(served: Served, texts: Sequence[list[int]], field: str) -> None:
    assert served.model is not None
    limit = served.model.max_length
    long = (position for position, ids in enumerate(texts) if limit is not None and len(ids) > limit)
    if (position := next(long, None)) is not None:
        # Cut, they would lack the special tokens at their end.
        raise too_long(served, f"{field}[{position}]", field, "Token ids are never cut. Shorten them, or send the text")


def too_long(served: Served, where: str, field: str, remedy: str) -> ApiError:
    """The error for a text that is longer than the model reads."""
    assert served.model is not None
    return ApiError(
        400,
        f"{where} has more than the {served.model.max_length} tokens that {served.name} reads. {remedy}",
        code="context_length_exceeded",
        param=field,
        is_limit=True,
    )


@contextmanager
def admission(served: Served, field: str | None = None) -> Any:
    """Turns ``QueueFull`` into the answer that says when to try again, and ``InvalidFeeds`` into one that names the
    field of the request that the feeds are made of, if it is one."""
    try:
        yield
    except InvalidFeeds as error:
        raise ApiError(400, f"{field}: {error}" if field else str(error), param=field) from error
    except QueueFull as error:
        raise ApiError(
            429,
            f"{served.name} is overloaded: at most {error.limit} texts may wait. Try again later",
            code="rate_limit_exceeded",
            headers={"Retry-After": served.retry_after()},
        ) from error


def _parts(text: Any) -> tuple[Any, ...]:
    return text if isinstance(text, tuple) else (text,)


async def relevance(
    served: Served,
    encoder: CrossEncoder,
    settings: Settings,
    query: str,
    documents: Sequence[str],
    *,
    truncate: bool | None,
    field: str,
    raw: bool = False,
) -> tuple[list[tuple[int, float]], int]:
    """Documents by their score for a query, best first; and the number of tokens.

    Args:
        served, encoder: the model.
        settings: the limits.
        query, documents: the texts.
        truncate, field: as for :func:`encoded`.
        raw: return the model's logits; otherwise scores from 0 to 1, as the protocols define.

    Returns:
        The position and the score of each document.
    """
    check_count(settings, len(documents), field)
    _checked_length(settings, query, "query", "query")
    pairs = [(query, document) for document in documents]
    tokens = await encoded(served, settings, pairs, encoder.encode, truncate=truncate, field=field)
    with admission(served, field):
        scores = finite(await encoder.apredict(tokens, activation="Identity" if raw else "Sigmoid"), "A score")
    order = np.argsort(-scores, kind="stable")
    return [(int(index), float(scores[index])) for index in order], sum(tokens.lengths)
