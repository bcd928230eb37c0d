"""What the bodies of requests have in common: no unknown field, and fields that accept several forms."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, FailFast, WithJsonSchema, model_validator
from pydantic_core import PydanticCustomError

from isorun.errors import did_you_mean
from isorun_serve.errors import ApiError

_MAX_LISTS = 500_000  # with objects, of a body: Python's garbage collector takes seconds for millions


def check_lists(content: bytes) -> None:
    """Reject JSON with too many lists and objects, before it is parsed. Brackets in strings count as well: to tell them
    apart takes as long as to parse them.

    Raises:
        ApiError: it has.
    """
    count = content.count(b"[") + content.count(b"{")
    if count > _MAX_LISTS:
        raise ApiError(413, f"JSON must have at most {_MAX_LISTS} '[' and '{{', got {count}. Send several requests")


class FirstError(FailFast):
    """Validates a list up to the first wrong item: to describe hundreds of thousands of them would take seconds, in
    which the server answers nobody."""

    def __hash__(self) -> int:  # types in a union have one
        return hash(type(self))


class KnownFields(BaseModel):
    """A body, or a part of one, that has no field but its own: one that is ignored would change what a client gets.

    A field may be ``null``, as some clients send what they do not set.
    """

    model_config = ConfigDict(extra="forbid", strict=True)

    @model_validator(mode="before")
    @classmethod
    def _know_fields(cls, body: Any) -> Any:
        if not isinstance(body, dict):
            return body
        for name in body:
            if name not in cls.model_fields:
                message = f"unknown field {name!r}{did_you_mean(name, cls.model_fields)}"
                field = ascii(name)[1:-1]  # it may hold half of a character, which no answer can
                raise PydanticCustomError("unknown_field", "{message}", {"message": message, "field": field})
        return {name: value for name, value in body.items() if value is not None}


def _texts_or_ids(value: Any) -> Any:
    if isinstance(value, str) or (isinstance(value, list) and _is_one_kind(value)):
        return value
    raise ValueError("expected a string, a list of strings, a list of token ids, or a list of such lists")


def _is_one_kind(items: list[Any]) -> bool:
    kinds = set(map(type, items))
    return len(kinds) <= 1 and (
        kinds <= {str, int} or (kinds == {list} and set(map(type, chain.from_iterable(items))) <= {int})
    )


def _texts(value: Any) -> Any:
    if isinstance(value, str) or (isinstance(value, list) and set(map(type, value)) <= {str}):
        return value
    raise ValueError("expected a string, or a list of strings")


def _ids(value: Any) -> Any:
    if isinstance(value, list) and _is_one_kind(value) and not (value and isinstance(value[0], str)):
        return value
    raise ValueError("expected a list of token ids, or a list of such lists")


def _text_or_pairs(value: Any) -> Any:
    if isinstance(value, str) or (isinstance(value, list) and value and (_is_text(value) or all(map(_is_text, value)))):
        return value
    raise ValueError("expected a string, a pair [string, string], or a list of [string] and of pairs")


def _is_text(item: Any) -> bool:
    """Whether an item is a text or a pair in a list."""
    return isinstance(item, list) and len(item) in (1, 2) and all(isinstance(part, str) for part in item)


_STRING: dict[str, Any] = {"type": "string"}
_IDS: dict[str, Any] = {"type": "array", "items": {"type": "integer"}}
_TEXTS: dict[str, Any] = {"type": "array", "items": _STRING}
_TEXT: dict[str, Any] = {"type": "array", "items": _STRING, "minItems": 1, "maxItems": 2}

TextsOrIds = Annotated[
    Any,
    AfterValidator(_texts_or_ids),
    WithJsonSchema({"anyOf": [_STRING, _IDS, {"type": "array", "items": {"anyOf": [_STRING, _IDS]}}]}),
]
"""A text, several, or the token ids of one or of several."""

Texts = Annotated[Any, AfterValidator(_texts), WithJsonSchema({"anyOf": [_STRING, _TEXTS]})]
"""A text or several. Of a union of types, an error would tell what the first one lacks."""

Ids = Annotated[Any, AfterValidator(_ids), WithJsonSchema({"anyOf": [_IDS, {"type": "array", "items": _IDS}]})]
"""The token ids of one text or of several."""

TextOrPairs = Annotated[
    Any,
    AfterValidator(_text_or_pairs),
    WithJsonSchema({"anyOf": [_STRING, _TEXT, {"type": "array", "items": _TEXT}]}),
]
"""A text, a pair of texts, or several of both."""


def as_list(value: Any) -> list[Any]:
    """The texts, or the token ids of each text, of a :data:`TextsOrIds`."""
    if isinstance(value, list) and not (value and isinstance(value[0], int)):
        return value
    return [value]


def are_ids(items: Sequence[Any]) -> bool:
    """Whether the items of :func:`as_list` are token ids."""
    return bool(items) and isinstance(items[0], list)
