"""The one way to a compiled model: every call is refused once it is closed, and serialized unless it is thread-safe."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

from isorun.errors import BackendFailed, IsorunError

_T = TypeVar("_T")

CLOSED = "This session is closed. Open another."


class Handle:
    """A compiled model, shared by a session and its bindings.

    Args:
        thread_safe: whether calls may overlap.
        release: closes the compiled model.
    """

    def __init__(self, *, thread_safe: bool, release: Callable[[], None]) -> None:
        self._lock = None if thread_safe else threading.Lock()
        self._release = release
        self._refusal = ""

    @property
    def closed(self) -> bool:
        """Whether calls are refused."""
        return bool(self._refusal)

    def check_open(self) -> None:
        """Raise ``IsorunError`` once the model is closed."""
        if self._refusal:
            raise IsorunError(self._refusal)

    def call(self, function: Callable[..., _T], *arguments: object) -> _T:
        """Call a function of the compiled model.

        Args:
            function, arguments: what to call.

        Raises:
            IsorunError: the model is closed.
            BackendFailed: the runtime failed.
        """
        self.check_open()
        try:
            if self._lock is None:
                return function(*arguments)
            with self._lock:
                self.check_open()  # it may have been closed while this call waited
                return function(*arguments)
        except BackendFailed:
            self.check_open()  # another thread may have closed it during the call
            raise

    def close(self) -> None:
        """Refuse further calls, and release the model once the current call is done."""
        self._refusal = CLOSED
        if self._lock is None:
            self._release()
        else:
            with self._lock:
                self._release()

    def refuse(self, reason: str) -> None:
        """Refuse further calls without releasing the model."""
        self._refusal = reason

    def unlock_after_fork(self) -> None:
        """Replace the lock: the thread that held it may not exist in this process."""
        if self._lock is not None:
            self._lock = threading.Lock()
