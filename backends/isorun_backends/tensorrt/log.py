"""TensorRT's log, the only place where TensorRT explains a failure.

TensorRT keeps the first logger of a process, so all builders and runtimes share one. Nothing is printed; errors and
warnings are kept for the exception that follows.
"""

from __future__ import annotations

from collections import deque
from functools import cache
from itertools import count
from typing import Any

_SHOWN = 8  # messages in one exception
_messages: deque[tuple[int, str]] = deque(maxlen=64)
_numbers = count()


class Log:
    """The messages since this object was created, from any thread."""

    def __init__(self) -> None:
        self._since = next(_numbers)

    def error(self) -> RuntimeError:
        """The messages as an exception, to be a cause: TensorRT itself raises none."""
        return RuntimeError(str(self))

    def __str__(self) -> str:
        messages = [text for number, text in _messages.copy() if number > self._since]
        return "; ".join(messages[-_SHOWN:]) or "TensorRT gives no reason"


@cache
def logger(trt: Any) -> Any:
    """The one logger of this process."""
    severity = trt.ILogger.Severity
    kept = {severity.INTERNAL_ERROR, severity.ERROR, severity.WARNING}

    class Logger(trt.ILogger):  # type: ignore[misc]
        def __init__(self) -> None:
            trt.ILogger.__init__(self)

        def log(self, severity: Any, msg: str) -> None:
            if severity in kept:
                _messages.append((next(_numbers), msg))

    return Logger()
