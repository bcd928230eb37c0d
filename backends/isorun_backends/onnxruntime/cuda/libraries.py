"""Whether ONNX Runtime's providers for NVIDIA GPUs can be had here: which build is installed, what it was built
for, and the library that is missing where a provider did not load.

ONNX Runtime itself only logs that a provider did not load, and goes on without it.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import io
import re
from pathlib import Path
from typing import NamedTuple

from isorun.errors import BackendUnavailable
from isorun.types import Availability, Finding
from isorun_backends.cuda_driver import driver

GPU_BUILD = "onnxruntime-gpu"
_INSTALL = "pip uninstall -y onnxruntime onnxruntime-gpu onnxruntime-openvino && pip install onnxruntime-gpu"
_NO_GPU = "This backend needs an NVIDIA GPU and its driver."
_MISSING = re.compile(r"(lib[\w.+-]+?\.so[\w.]*): cannot open shared object file")
_EXTRAS = {"libcudnn": "cudnn"}
_CUDNN = ("libcudnn.so.9", "libcudnn.so")  # as ONNX Runtime opens it, when a kernel first asks for it


class Build(NamedTuple):
    """What the installed ONNX Runtime says of itself."""

    package: str
    cuda: str
    folder: Path


def build() -> Build | None:
    """The active one of the distributions that share the import package, read from its file: nothing is imported.

    ``None`` where there is none, or only a hollow folder.
    """
    spec = importlib.util.find_spec("onnxruntime")
    if spec is None or spec.origin is None:
        return None
    folder = Path(spec.origin).parent / "capi"
    try:
        text = (folder / "build_and_package_info.py").read_text()
    except OSError:
        return None
    named = dict(re.findall(r"^(package_name|cuda_version) *= *['\"](.*?)['\"]", text, re.MULTILINE))
    return Build(named.get("package_name", ""), named.get("cuda_version", ""), folder)


def availability(provider: str, otherwise: Availability) -> Availability:
    """Whether a provider may be had, as far as can be said without importing ONNX Runtime.

    Args:
        provider: ``cuda`` or ``tensorrt``: part of its library's name.
        otherwise: what :meth:`isorun.plugin.backend.Backend.availability` says of the package.
    """
    if not otherwise.ok:
        return otherwise
    found = build()
    if found is None:
        return Availability(False, "the installed ONNX Runtime does not say what build it is", _INSTALL)
    if not (found.folder / _library(provider)).is_file():
        return Availability(
            False,
            f"the active ONNX Runtime is the build {found.package!r}, which has no {_library(provider)}: "
            "all of its builds own one import package, and the last installed wins",
            f"In an environment of its own: {_INSTALL}",
        )
    if trouble := driver().trouble:
        return Availability(False, trouble, _NO_GPU)
    return Availability(True)


def preload() -> str:
    """Load CUDA's and cuDNN's libraries from their wheels, or from where the system has them.

    ONNX Runtime looks for the wheels beside itself alone. Here they are found wherever Python finds them: those that
    PyTorch brought, where ONNX Runtime lies in another folder on the path.

    Returns:
        What ONNX Runtime prints meanwhile: the libraries that it could not load.
    """
    import onnxruntime

    found = importlib.util.find_spec("nvidia")
    places = [] if found is None else found.submodule_search_locations or []
    for folder in sorted({folder for place in places for folder in Path(place).glob("*/lib")}):
        with contextlib.redirect_stdout(io.StringIO()):  # each has some, and lacks the rest
            onnxruntime.preload_dlls(directory=str(folder))
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        onnxruntime.preload_dlls()
    return printed.getvalue().strip()


def not_loaded(name: str, provider: str, said: str) -> BackendUnavailable:
    """Why a provider is not among those of a session that asked for it.

    Only to be called then: ONNX Runtime's provider libraries must not be loaded before it loads them itself.

    Args:
        name: the backend's.
        provider: ``cuda`` or ``tensorrt``.
        said: what :func:`preload` returned.
    """
    found = build()
    if found is None:
        return BackendUnavailable(name, "the active ONNX Runtime has gone", _INSTALL)
    trouble = driver().trouble
    remedy = _NO_GPU if trouble else ""
    if missing := _missing(found, provider):
        reason = f"{_library(provider)} needs {missing}, which cannot be loaded"
        return BackendUnavailable(name, "; ".join(filter(None, (reason, trouble))), remedy or _remedy(missing, found))
    reason = f"ONNX Runtime did not take up its {provider} provider, although the library loads"
    return BackendUnavailable(
        name, "; ".join(filter(None, (reason, trouble, said))), remedy or "ONNX Runtime's log says why."
    )


def require_cudnn(name: str) -> None:
    """Refuse to go on without cuDNN. After :func:`preload`.

    The provider loads without it, and its attention kernels fail at the first run, also those that do not use it.

    Raises:
        BackendUnavailable: it cannot be loaded.
    """
    found = build()
    for library in _CUDNN:
        with contextlib.suppress(OSError):
            ctypes.CDLL(library, mode=ctypes.RTLD_GLOBAL)
            return
    assert found is not None, "it was loaded from there"
    reason = f"this model's attention kernels need {_CUDNN[0]}, which cannot be loaded"
    raise BackendUnavailable(name, reason, _remedy(_CUDNN[0], found))


def diagnose(name: str, provider: str) -> list[Finding]:
    """The library that is missing where a provider that is installed does not load. For a process of its own.

    Args:
        name: the backend's.
        provider: ``cuda`` or ``tensorrt``.
    """
    found = build()
    if found is None or not (found.folder / _library(provider)).is_file():
        return []
    preload()
    missing = _missing(found, provider)
    if missing is None:
        return []
    trouble = driver().trouble
    why = f"ONNX Runtime says so in its log alone, and runs on the CPU{f'; besides, {trouble}' if trouble else ''}"
    what = f"{_library(provider)} needs {missing}, which cannot be loaded"
    command, _ = _install(missing, found)
    return [Finding(f"the backend {name}", "warning" if trouble else "error", what, why, command)]


def _missing(found: Build, provider: str) -> str | None:
    """The library that a provider's library lacks, or what the linker says; ``None`` where it loads."""
    try:
        ctypes.CDLL(str(found.folder / "libonnxruntime_providers_shared.so"), mode=ctypes.RTLD_GLOBAL)
        ctypes.CDLL(str(found.folder / _library(provider)))
    except OSError as error:
        match = _MISSING.search(str(error))
        return match[1] if match else str(error)
    return None


def _library(provider: str) -> str:
    return f"libonnxruntime_providers_{provider}.so"


def _remedy(missing: str, found: Build) -> str:
    command, what = _install(missing, found)
    return f"Install {what}: {command}"


def _install(missing: str, found: Build) -> tuple[str, str]:
    """The command that brings a library, and what it is in words."""
    if missing.startswith(("libnvinfer", "libnvonnxparser")):
        version = re.search(r"\.so\.(\d+)", missing)
        wanted = f"tensorrt-cu{found.cuda.partition('.')[0]}" + (f"=={version[1]}.*" if version else "")
        return f"pip install '{wanted}'", "the TensorRT that this build of ONNX Runtime was made for"
    extras = _EXTRAS.get(missing.partition(".")[0], "cuda,cudnn")
    return (
        f"pip install '{GPU_BUILD}[{extras}]'",
        f"CUDA {found.cuda}'s libraries, if the system has none where the linker finds them",
    )
