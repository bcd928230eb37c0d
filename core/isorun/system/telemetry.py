"""Import of runtimes without their telemetry: an application decides who hears of its models.

ONNX Runtime since 1.29 sends events about the machine, its sessions and their models to Microsoft, from the import on
(``docs/Privacy.md`` of its repository). OpenVINO sends an event of each import to Google Analytics. Both keep an
identifier in the user's folder.
"""

from __future__ import annotations

import importlib
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from isorun.errors import InvalidArgument

VARIABLE = "ISORUN_RUNTIME_TELEMETRY"
"""The environment variable that leaves the telemetry on, if it is 1."""
_SWITCH = "ORT_DISABLE_TELEMETRY"  # read once, by the import
_PACKAGE = "openvino_telemetry"  # openvino has a stub for when it is not installed
_lock = threading.Lock()


def import_runtime(package: str) -> Any:
    """Import a runtime without its telemetry, unless it was imported before.

    Args:
        package: its name, such as ``onnxruntime``.

    Returns:
        The module.

    Raises:
        InvalidArgument: ``$ISORUN_RUNTIME_TELEMETRY`` is neither 0 nor 1.
    """
    allowed = os.environ.get(VARIABLE, "0")
    if allowed not in ("", "0", "1"):
        raise InvalidArgument(f"{VARIABLE} must be 0 or 1, got {allowed!r}")
    if package in sys.modules or allowed == "1":
        return importlib.import_module(package)
    with _lock, _left_out():
        return importlib.import_module(package)


@contextmanager
def _left_out() -> Iterator[None]:
    """While a runtime is imported. An application's own choice of ONNX Runtime's switch stays."""
    chosen, known = _SWITCH in os.environ, _PACKAGE in sys.modules
    os.environ.setdefault(_SWITCH, "1")
    if not known:
        sys.modules[_PACKAGE] = None  # type: ignore[assignment]  # an import of it fails
    try:
        yield
    finally:
        if not chosen:
            del os.environ[_SWITCH]
        if not known:
            del sys.modules[_PACKAGE]
