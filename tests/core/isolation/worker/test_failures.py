"""Exceptions described as JSON and rebuilt."""

from __future__ import annotations

import json

import pytest

from isorun.errors import (
    BackendFailed,
    BackendUnavailable,
    InvalidFeeds,
    IsorunError,
    UnsupportedModel,
)
from isorun.isolation.worker import failures
from isorun.isolation.worker.failures import RemoteError


class Mine(UnsupportedModel):
    """An exception of a plugin."""


class Foreign(Exception):
    """An exception of a runtime."""


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
    found = across(error)
    assert type(found) is type(error)
    assert str(found) == str(error)
    assert vars(found) == vars(error)


def test_unknown_class_becomes_its_nearest_known_base():
    found = across(Mine("no Foo", ["Foo"]))
    assert type(found) is UnsupportedModel
    assert found.operators == ("Foo",)


@pytest.mark.parametrize(
    ("error", "message"),
    [(Foreign("the device is lost"), "Foreign: the device is lost"), (KeyError("k"), "KeyError: 'k'")],
)
def test_unknown_exception_becomes_backend_failed(error, message):
    found = across(error)
    assert (type(found), str(found)) == (BackendFailed, message)


def test_cause_has_type_message_and_traceback():
    def vendor():
        raise Foreign("code 7")

    try:
        try:
            vendor()
        except Foreign as error:
            raise BackendFailed("it failed: code 7") from error
    except BackendFailed as error:
        found = failures.rebuild(failures.describe(error))
    assert isinstance(found.__cause__, RemoteError)
    assert (found.__cause__.type, found.__cause__.message) == ("Foreign", "code 7")
    assert "in vendor" in found.__cause__.traceback
    assert str(found.__cause__).startswith("Foreign: code 7\n\nTraceback")


def test_built_in_exception_keeps_its_traceback():
    found = across(ValueError("a bug"))
    assert "in throw" in found.__cause__.traceback


def test_isorun_error_without_cause():
    assert across(IsorunError("no")).__cause__ is None
