"""Keeps other threads' calls to CUDA out of the recording of a CUDA graph.

ONNX Runtime records in CUDA's global mode, in which a call such as ``cudaMalloc`` on any thread of the process fails,
and spoils the recording (error 901, on an H100). So recordings wait for the runs in flight, and runs for the recording.
Only isorun's own calls are held back.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_changed = threading.Condition()
_running = 0
_recordings = 0  # one that is being made, and those that wait
_inside = threading.local()


@contextmanager
def running() -> Iterator[None]:
    """Around calls to CUDA: they begin when no other thread is recording."""
    if getattr(_inside, "any", False):  # a finalizer, say
        yield
        return
    with _counted(lambda: not _recordings):
        yield


@contextmanager
def recording() -> Iterator[None]:
    """Around a run that may be recorded: alone in this process. Not inside :func:`running`."""
    global _recordings
    with _changed:
        _recordings += 1
    try:
        with _counted(lambda: not _running):
            yield
    finally:
        with _changed:
            _recordings -= 1
            _changed.notify_all()


@contextmanager
def _counted(may_begin: Callable[[], bool]) -> Iterator[None]:
    global _running
    with _changed:
        _changed.wait_for(may_begin)
        _running += 1
    _inside.any = True
    try:
        yield
    finally:
        _inside.any = False
        with _changed:
            _running -= 1
            _changed.notify_all()
