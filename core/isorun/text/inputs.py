"""The texts that callers pass, as lists of str: one place that decides what is accepted.

pandas, Polars and PyArrow are recognized by their methods and never imported.
"""

from __future__ import annotations

import array
from collections.abc import Iterable, Iterator, Mapping, Set
from typing import Any

from isorun.errors import InvalidArgument, InvalidFeeds
from isorun.models.tokenizer import Text
from isorun.system.arguments import is_unicode

_REMEDY = "Pass a list of str, a one-dimensional array, or a column"
_SINGLE = (str, bytes, bytearray, memoryview, array.array)  # their items are letters or numbers
_MISSING = ("NoneType", "NAType", "NaTType")


def texts_of(value: object, name: str = "texts") -> list[str]:
    """A list of the texts.

    Args:
        value: a list, tuple or other sequence of str, an iterator, a one-dimensional array of NumPy, or a column of
            pandas, Polars or PyArrow, which is read by position.
        name: the argument, for messages.

    Raises:
        InvalidArgument: ``value`` has no order or is a single text, a table, or not a collection.
        InvalidFeeds: an item is not a str, or is not valid Unicode.
    """
    return list(stream_of(value, name))


def stream_of(value: object, name: str = "texts") -> Iterator[str]:
    """As :func:`texts_of`, one after the other: only what is not a str is reported as late as it is read."""
    return (checked(text, f"Text {position}") for position, text in enumerate(_items(value, name, "str")))


def texts_or_pairs_of(value: object, name: str = "texts") -> list[Text]:
    """As :func:`texts_of`, where an item may also be a tuple or list of two texts, such as a query and a document."""
    if isinstance(value, tuple) and len(value) == 2 and all(isinstance(part, str) for part in value):
        raise InvalidArgument(
            f"Ambiguous {name}: got a tuple of two str. Pass [(first, second)] for one pair, or a list for two texts"
        )
    items = _items(value, name, "str or of pairs")
    return [text_or_pair(item, f"Text {position}") for position, item in enumerate(items)]


def text_or_pair(item: object, name: str) -> Text:
    """A text, or a pair of texts as a tuple.

    Raises:
        InvalidFeeds: as :func:`texts_of`; the message begins with ``name``.
    """
    if not isinstance(item, tuple | list):
        return checked(item, name, "a str or a pair of str")
    if len(item) != 2:
        raise InvalidFeeds(f"{name} must be a str or a pair of str, got a {type(item).__name__} of {len(item)}")
    first, second = (checked(part, f"{name}, part {number} of the pair,") for number, part in enumerate(item, 1))
    return first, second


def checked(text: object, name: str, expected: str = "a str") -> str:
    """A text as a plain str.

    Raises:
        InvalidFeeds: it is not a str, or it is not valid Unicode; the message begins with ``name``.
    """
    if not isinstance(text, str):
        kind = type(text).__name__
        missing = kind in _MISSING or (isinstance(text, float) and text != text)  # NaN
        got = f"a missing value ({text!r}). Drop or fill missing values" if missing else kind
        raise InvalidFeeds(f"{name} must be {expected}, got {got}")
    if not is_unicode(text):
        raise InvalidFeeds(f"{name} contains a lone surrogate (was it decoded from invalid UTF-8?): {text[:80]!r}")
    return text if type(text) is str else str.__str__(text)  # a subclass, such as numpy.str_, may print otherwise


def _items(value: Any, name: str, expected: str) -> Iterable[object]:
    """The items in order; the collection itself is validated at once."""
    kind = type(value).__name__
    if isinstance(value, list | tuple):
        return value
    if isinstance(value, _SINGLE):
        remedy = "Put it in a list" if isinstance(value, str) else "Decode it, and put it in a list"
        raise InvalidArgument(f"{name} must be a list of {expected}, got a single {kind}. {remedy}")
    if isinstance(value, Mapping | Set | type):
        raise InvalidArgument(f"{name} must be a list of {expected}, got {_named(value, kind)}. {_REMEDY}")
    if hasattr(type(value), "columns") or hasattr(type(value), "column_names"):
        raise InvalidArgument(f"{name} must be a list of {expected}, got a table ({kind}). Pass one of its columns")
    shape = getattr(value, "shape", None)
    if isinstance(shape, tuple) and len(shape) != 1:
        raise InvalidArgument(f"{name} must have one dimension, got {kind} of shape {shape}. {_REMEDY}")
    # A column's own method gives str; iterating over one gives scalars of its library, or the labels of an index.
    for method in ("to_pylist", "to_list", "tolist"):
        if callable(convert := getattr(value, method, None)):
            converted: object = convert()
            if isinstance(converted, list):
                return converted
    try:
        items: Iterable[object] = iter(value)
    except TypeError:
        raise InvalidArgument(f"{name} must be a list of {expected}, got {kind}. {_REMEDY}") from None
    return items


def _named(value: object, kind: str) -> str:
    return f"the class {value.__name__}" if isinstance(value, type) else f"{kind}, whose items are not texts in order"
