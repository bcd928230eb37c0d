"""TensorRT's log: what it says besides an error's absence or a null.

TensorRT takes the first logger of a process for its own, and keeps it: all builders and runtimes are given one that
lives as long as the process. Nothing is printed; errors and warnings are kept for the error that follows.
"""

from __future__ import annotations

from collections import deque
from functools import cache
from itertools import count
from typing import Any

_LAST = 8  # messages that an error tells
_messages: deque[tuple[int, str]] = deque(maxlen=64)
_numbers = count()


class Log:
    """What TensorRT says from now on, to whatever thread."""

    def __init__(self) -> None:
        self._since = next(_numbers)

    def error(self) -> RuntimeError:
        """The same as an exception, to be the cause of isorun's own: TensorRT raises none."""
        return RuntimeError(str(self))

    def __str__(self) -> str:
        said = [text for number, text in _messages.copy() if number > self._since]
        return "; ".join(said[-_LAST:]) or "TensorRT gives no reason"


@cache
def logger(trt: Any) -> Any:
    """What TensorRT takes as its logger: the same one always."""
    severity = trt.ILogger.Severity
    worth = {severity.INTERNAL_ERROR, severity.ERROR, severity.WARNING}

    class Logger(trt.ILogger):  # type: ignore[misc]
        def __init__(self) -> None:
            trt.ILogger.__init__(self)

        def log(self, severity: Any, msg: str) -> None:
            if severity in worth:
                _messages.append((next(_numbers), msg))

    return Logger()
