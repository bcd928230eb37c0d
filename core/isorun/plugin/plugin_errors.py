"""What plugins do wrong, as errors of isorun about that plugin."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from isorun.errors import BackendFailed, DeadlineExceeded, IsorunError, QueueFull, SessionClosed, in_words
from isorun.plugin.backend import Backend
from isorun.system import limits
from isorun.system.interruption import interrupts

_T = TypeVar("_T")


def called(backend: Backend, method: str, function: Callable[..., _T], *arguments: object) -> _T:
    """Call a function of a plugin.

    Raises:
        BackendFailed: the plugin raises an exception of its own.
        IsorunError: as the function.
    """
    try:
        return function(*arguments)
    except BaseException as error:
        if is_allowed(error) or interrupts(error):
            raise
        raise failure(backend, method, error) from error


def is_allowed(error: BaseException) -> bool:
    """Whether a plugin may raise an exception: an error of isorun, but none of sessions and queues, which would tell
    the caller something else than what happened."""
    of_sessions = (SessionClosed, QueueFull, DeadlineExceeded)
    return isinstance(error, IsorunError) and type(error) is not IsorunError and not isinstance(error, of_sessions)


def failure(backend: Backend, method: str, error: BaseException) -> BackendFailed:
    """The error for an exception that a plugin raised."""
    advice = limits.advice(error, _report(backend))
    return BackendFailed(f"{backend.name}: {method} raised {in_words(error)}. {advice}")


def violation(backend: Backend, method: str, expected: str) -> BackendFailed:
    """The error for what a plugin returned: "must return ``expected``"."""
    return BackendFailed(f"{backend.name}: {method} must return {expected}. {_report(backend)}")


def wrong_type(backend: Backend, method: str, expected: str, actual: object) -> BackendFailed:
    """The error for a value of another type than expected."""
    return violation(backend, method, f"{expected}, got {type(actual).__name__}")


def _report(backend: Backend) -> str:
    return f"Report it to the authors of {backend.__module__}"  # of one that another process runs, its own
