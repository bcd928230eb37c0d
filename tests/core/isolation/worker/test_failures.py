"""Exceptions described as JSON and rebuilt."""

import json

import pytest

from isorun.errors import (
    BackendFailed,
    BackendUnavailable,
    InvalidFeeds,
    UnsupportedModel,
)
from isorun.isolation.worker import failures


class Mine(UnsupportedModel):
    """An exception of a plugin."""


def across(error: Exception) -> Exception:
    """A raised exception as the other process rebuilds it."""
    with pytest.raises(type(error)) as caught:
        throw(error)
    return failures.rebuild(json.loads(json.dumps(failures.describe(caught.value))))


def throw(error: Exception) -> None:
    raise error


@pytest.mark.parametrize(
    "error",
    [
        BackendUnavailable("b", "it is off", "Turn it on."),
        UnsupportedModel("no Foo", ["Foo"]),
        InvalidFeeds("not these"),
        BackendFailed("it failed"),
        ValueError("a bug"),
        MemoryError("too much"),
        RuntimeError("odd"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_keeps_class_message_and_attributes(error):
    received = across(error)
    assert type(received) is type(error)
    assert str(received) == str(error)
    assert vars(received) == vars(error)


def test_unknown_class_becomes_its_nearest_known_base():
    received = across(Mine("no Foo", ["Foo"]))
    assert type(received) is UnsupportedModel
    assert received.operators == ("Foo",)


def test_name_of_an_error_of_isorun_is_not_enough() -> None:
    """ONNX Runtime has an ``InvalidArgument`` too."""
    rebuilt = across(type("InvalidArgument", (Exception,), {})("a node failed"))
    assert type(rebuilt) is BackendFailed
    assert "InvalidArgument: a node failed" in str(rebuilt)


def test_message_that_cannot_be_read() -> None:
    """Without an answer, the caller would wait for ever."""

    class Unreadable(Exception):
        def __str__(self) -> str:
            raise ZeroDivisionError

    assert "ZeroDivisionError" in str(across(Unreadable()))
