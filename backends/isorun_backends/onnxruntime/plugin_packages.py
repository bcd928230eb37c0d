"""Execution providers that are packages of their own: finding them, loading them, listing their devices.

Such a package has ``get_library_path()`` and ``get_ep_name()`` (or ``get_ep_names()``), as ONNX Runtime's documentation
of plugin execution providers requires. Nothing else is known of it.
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

from isorun.plugin import BackendUnavailable, package_version, packages_distributions

if TYPE_CHECKING:
    import onnxruntime

_PREFIXES = ("onnxruntime_ep_", "onnxruntime_")
_MARKS = (r"^def get_library_path\b", r"^def get_ep_names?\b")
_loading = threading.Lock()


def installed() -> dict[str, str]:
    """Short name to import name of every package with a provider. Nothing is imported.

    ``onnxruntime_ep_openvino`` becomes ``openvino``; packages whose short names collide keep their import names.
    """
    packages = sorted(name for name in packages_distributions() if name.isidentifier() and _has_provider(name))
    shorts = [_short(package) for package in packages]
    return {
        package if shorts.count(short) > 1 else short: package for package, short in zip(packages, shorts, strict=True)
    }


def _short(package: str) -> str:
    for prefix in _PREFIXES:
        package = package.removeprefix(prefix)
    return package.replace("_", "-")


def _has_provider(package: str) -> bool:
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None or not spec.origin.endswith("__init__.py"):
        return False
    text = Path(spec.origin).read_text(encoding="utf-8", errors="replace")
    return all(re.search(mark, text, re.MULTILINE) for mark in _MARKS)


def devices(name: str, package: str) -> Sequence[onnxruntime.OrtEpDevice]:
    """The devices that a package's provider offers on this machine. Loads its library for the life of the process.

    Args:
        name: the backend's name, for errors.
        package: the import name.

    Raises:
        BackendUnavailable: the package or its library does not load, or it offers no device.
    """
    import onnxruntime

    title = f"{package} {package_version(package)}"
    try:
        with _loading:  # a library must not be registered twice
            provider = _register(package)
    except Exception as error:
        raise BackendUnavailable(
            name,
            f"{title} does not load into ONNX Runtime {onnxruntime.__version__} ({type(error).__name__}: {error})",
            "Install compatible versions of the two.",
        ) from error
    found = onnxruntime.get_ep_devices()
    offered = [device for device in found if device.ep_name == provider]
    if not offered:
        hardware = sorted({f"{each.device.vendor} {each.device.type.name}" for each in found})
        raise BackendUnavailable(
            name,
            f"{title} offers no device on this machine ({', '.join(hardware)})",
            "Run it on a machine with its hardware, or choose another backend.",
        )
    return offered


@cache
def _register(package: str) -> str:
    """Load a package's library into ONNX Runtime; returns the name of its provider."""
    import onnxruntime

    module = importlib.import_module(package)
    library = str(module.get_library_path())
    provider = module.get_ep_name() if hasattr(module, "get_ep_name") else module.get_ep_names()[0]
    onnxruntime.register_execution_provider_library(package, library)
    return str(provider)
