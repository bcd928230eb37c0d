"""Keeps other threads' calls to CUDA out of the recording of a CUDA graph.

ONNX Runtime records in CUDA's global mode, in which a call such as ``cudaMalloc`` on any thread of the process fails,
and spoils the recording (error 901, on an H100). So recordings wait for the runs in flight, and runs for the recording.
Only isorun's own calls are held back.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

_changed = threading.Condition()
_running = 0
_recordings = 0  # one that is being made, and those that wait
_inside = threading.local()


@contextmanager
def running() -> Iterator[None]:
    """Around calls to CUDA: they begin when no other thread is recording."""
    global _running
    if getattr(_inside, "any", False):  # a finalizer, say
        yield
        return
    with _changed:
        _changed.wait_for(lambda: not _recordings)
        _running += 1
    try:
        with _marked():
            yield
    finally:
        with _changed:
            _running -= 1
            _changed.notify_all()


@contextmanager
def recording() -> Iterator[None]:
    """Around a run that may be recorded: alone in this process. Not inside :func:`running`."""
    global _running, _recordings
    with _changed:
        _recordings += 1
        _changed.wait_for(lambda: not _running)
        _running += 1
    try:
        with _marked():
            yield
    finally:
        with _changed:
            _running -= 1
            _recordings -= 1
            _changed.notify_all()


@contextmanager
def _marked() -> Iterator[None]:
    _inside.any = True
    try:
        yield
    finally:
        _inside.any = False
