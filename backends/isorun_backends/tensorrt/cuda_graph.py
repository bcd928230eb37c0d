"""CUDA graphs through cuda-bindings: pycuda cannot capture a stream. Not run on a GPU yet."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from isorun.plugin import BackendFailed, BackendUnavailable


def require(name: str) -> Any:
    """The module of CUDA's runtime. Raises ``BackendUnavailable`` if cuda-bindings does not import."""
    try:
        from cuda.bindings import runtime
    except ImportError as error:
        raise BackendUnavailable(
            name,
            f"CUDA graphs need cuda-bindings, which does not import ({error})",
            "Install it with `pip install cuda-bindings`, or omit cuda_graphs.",
        ) from error
    return runtime


def capture(name: str, stream: int, work: Callable[[], None]) -> Callable[[], None]:
    """Record work on a stream as a CUDA graph, and return what launches it there.

    Raises:
        BackendUnavailable: cuda-bindings does not import.
        BackendFailed: CUDA cannot record the work.
    """
    runtime = require(name)
    _checked(runtime.cudaStreamBeginCapture(stream, runtime.cudaStreamCaptureMode.cudaStreamCaptureModeThreadLocal))
    try:
        work()
    except BaseException:
        runtime.cudaStreamEndCapture(stream)  # its own result does not matter: the first error is raised
        raise
    graph = _checked(runtime.cudaStreamEndCapture(stream))
    try:
        executable = _checked(runtime.cudaGraphInstantiate(graph, 0))
    finally:
        runtime.cudaGraphDestroy(graph)

    def launch() -> None:
        _checked(runtime.cudaGraphLaunch(executable, stream))

    weakref.finalize(launch, runtime.cudaGraphExecDestroy, executable).atexit = False
    return launch


def _checked(answer: tuple[Any, ...]) -> Any:
    """The result of a call, which returns an error code first; raises ``BackendFailed`` if that is not 0."""
    code, *values = answer
    if int(code) != 0:
        raise BackendFailed(f"CUDA returned {code!r}")
    return values[0] if values else None
