"""SIGTERM and SIGHUP end a command as Ctrl-C does: its children are killed, and its temporary files removed.

Containers, CI jobs and ``timeout`` send the first, a terminal that is closed the second.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from isorun.system import threads

_NAMES = ("SIGTERM", "SIGHUP")
_SECONDS = 10.0  # in which a command must end: a call of a runtime cannot be interrupted, and may hang


class Interruption:
    """How a command was interrupted."""

    number: int = signal.SIGINT
    """The signal."""

    def on_signal(self, number: int, _: FrameType | None) -> None:
        """Interrupt the command, once: ``timeout``, for one, sends its signal twice."""
        self.number = number
        signal.signal(number, signal.SIG_IGN)
        raise KeyboardInterrupt

    def watch(self, received: int) -> None:
        """Wait for the bytes of signals, and end this process some time after one that the command was to end for."""
        while number := os.read(received, 1)[0]:
            if signal.getsignal(number) in (self.on_signal, signal.SIG_IGN):
                time.sleep(_SECONDS)
                os.write(2, f"isorun: did not end within {_SECONDS:g} s of a signal\n".encode())
                os._exit(128 + number)


@contextmanager
def interrupting() -> Iterator[Interruption]:
    """Have the signals raise ``KeyboardInterrupt`` in the block. Windows has none that another process can send."""
    interruption = Interruption()
    can_receive = hasattr(signal, "SIGHUP") and threading.current_thread() is threading.main_thread()
    if can_receive and handle(interruption.on_signal):
        received, writer = os.pipe()
        os.set_blocking(writer, False)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        threads.start(interruption.watch, received, name="isorun-signals")
    yield interruption


def handle(handler: Callable[[int, FrameType | None], object]) -> bool:
    """Set the handler of those signals that are not ignored, as ``nohup`` ignores one, and return whether any is
    set."""
    numbers = [getattr(signal, name) for name in _NAMES if hasattr(signal, name)]
    handled = [number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN]
    for number in handled:
        signal.signal(number, handler)
    return bool(handled)
