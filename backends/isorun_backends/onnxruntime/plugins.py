"""Execution providers that come as packages of their own: finding them, loading them, asking for their devices.

Such a package has ``get_library_path()`` and ``get_ep_name()`` (or ``get_ep_names()``), as ONNX Runtime's documentation
of plugin execution providers has it. Nothing else is known of it.
"""

from __future__ import annotations

import importlib
import importlib.util
import re
import threading
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from isorun.errors import BackendUnavailable
from isorun.system.packages import package_version, packages_distributions

if TYPE_CHECKING:
    import onnxruntime

_PREFIXES = ("onnxruntime_ep_", "onnxruntime_")
_MARKS = (r"^def get_library_path\b", r"^def get_ep_names?\b")
_loading = threading.Lock()


def installed() -> dict[str, str]:
    """Every package that brings a provider: a short name, and the name to import it by. Nothing is imported.

    ``onnxruntime_ep_openvino`` is ``openvino``; where two would have one name, each keeps its own.
    """
    found = sorted(name for name in packages_distributions() if name.isidentifier() and _brings_provider(name))
    shorts = [_short(package) for package in found]
    return {
        package if shorts.count(short) > 1 else short: package for package, short in zip(found, shorts, strict=True)
    }


def _short(package: str) -> str:
    for prefix in _PREFIXES:
        if package.startswith(prefix):
            return package.removeprefix(prefix).replace("_", "-")
    return package.replace("_", "-")


def _brings_provider(package: str) -> bool:
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None or not spec.origin.endswith("__init__.py"):
        return False
    text = Path(spec.origin).read_text(encoding="utf-8", errors="replace")
    return all(re.search(mark, text, re.MULTILINE) for mark in _MARKS)


def devices(name: str, package: str) -> Sequence[onnxruntime.OrtEpDevice]:
    """The devices that a package's provider offers on this machine. Its library is loaded, for good.

    Args:
        name: the backend's, for errors.
        package: to import.

    Raises:
        BackendUnavailable: the package or its library does not load, or it offers no device here.
    """
    import onnxruntime

    try:
        with _loading:  # a library must not be registered twice
            provider = _register(package)
    except Exception as error:
        raise BackendUnavailable(
            name,
            f"{package} {package_version(package)} does not load into ONNX Runtime {onnxruntime.__version__} "
            f"({type(error).__name__}: {error})",
            "Install versions of the two that go together.",
        ) from error
    found = [device for device in onnxruntime.get_ep_devices() if device.ep_name == provider]
    if not found:
        hardware = sorted({f"{each.device.vendor} {each.device.type.name}" for each in onnxruntime.get_ep_devices()})
        raise BackendUnavailable(
            name,
            f"{package} {package_version(package)} offers no device on this machine ({', '.join(hardware)})",
            "It needs hardware of its own: run it where that is, or take another backend.",
        )
    return found


@cache
def _register(package: str) -> str:
    """Load a package's library into ONNX Runtime; the name of its provider."""
    import onnxruntime

    module = importlib.import_module(package)
    library = str(module.get_library_path())
    provider = module.get_ep_name() if hasattr(module, "get_ep_name") else module.get_ep_names()[0]
    onnxruntime.register_execution_provider_library(package, library)
    return str(provider)
