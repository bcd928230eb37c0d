"""Exceptions as JSON, with the runtime's own error as their cause."""

from __future__ import annotations

import traceback
from typing import Any

from isorun import errors
from isorun.errors import BackendFailed, IsorunError, message_of

_PLAIN = str | int | float | bool | None
_BUILT_IN = (ValueError, TypeError, RuntimeError, MemoryError, OSError)  # complete with a message alone


class RemoteError(Exception):
    """An exception of another process as text: the cause of the error that is raised in this one.

    Attributes:
        type: the name of its class.
        traceback: its formatted traceback.
    """

    def __init__(self, type: str, message: str, traceback: str) -> None:
        self.type = type
        self.message = message
        self.traceback = traceback
        super().__init__(f"{type}: {message}\n\n{traceback.rstrip()}")


def describe(error: BaseException) -> dict[str, Any]:
    """An exception as plain data."""
    attributes = {name: value for name, value in vars(error).items() if _is_plain(value)}
    cause = error.__cause__ or (None if isinstance(error, IsorunError) else error)
    return {
        "type": type(error).__name__,
        "classes": [cls.__name__ for cls in type(error).__mro__ if _known(cls.__name__) is cls],
        "message": message_of(error),
        "attributes": attributes,
        "cause": None if cause is None else {
            "type": type(cause).__name__,
            "message": message_of(cause),
            "traceback": "".join(traceback.format_exception(cause)),
        },
    }  # fmt: skip


def rebuild(described: dict[str, Any]) -> Exception:
    """The exception of a description: of its nearest base class that this process knows.

    Anything but isorun's errors and a few built-in ones becomes :class:`isorun.errors.BackendFailed`.
    """
    cls = next(filter(None, map(_known, described["classes"])), BackendFailed)
    message = described["message"]
    if not described["classes"]:
        message = f"{described['type']}: {message}"
    error = cls.__new__(cls)  # its __init__ would compose the message again
    error.args = (message,)
    for name, value in described["attributes"].items():
        setattr(error, name, tuple(value) if isinstance(value, list) else value)
    if (cause := described["cause"]) is not None:
        error.__cause__ = RemoteError(cause["type"], cause["message"], cause["traceback"])
    return error


def _known(name: str) -> type[Exception] | None:
    own = getattr(errors, name, None)
    if isinstance(own, type) and issubclass(own, IsorunError):
        return own
    return next((known for known in _BUILT_IN if known.__name__ == name), None)


def _is_plain(value: Any) -> bool:
    return isinstance(value, _PLAIN) or (isinstance(value, list | tuple) and all(map(_is_plain, value)))
