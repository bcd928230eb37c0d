"""Whether ONNX Runtime's NVIDIA providers can load: which build is installed, and which library is missing.

ONNX Runtime itself only logs that a provider did not load, and continues on the CPU.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from isorun.plugin import Availability, BackendUnavailable, Finding
from isorun_backends.nvidia import cuda_driver, gpu
from isorun_backends.onnxruntime import builds

if TYPE_CHECKING:
    import onnxruntime

GPU_BUILD = "onnxruntime-gpu"
_INSTALL = "pip uninstall -y onnxruntime onnxruntime-gpu onnxruntime-openvino && pip install onnxruntime-gpu"
# Each after what it needs. cuFFT and cuRAND have versions of their own.
_PRELOADED = (
    "libcudart.so.{major}",
    "libcublasLt.so.{major}",
    "libcublas.so.{major}",
    "libnvJitLink.so.{major}",
    "libnvrtc.so.{major}",
    "libcurand.so.*",
    "libcufft.so.*",
    "libcudnn.so.9",
)
_CUDNN = ("libcudnn.so.9", "libcudnn.so")  # in the order in which ONNX Runtime opens them at the first use


def installed(provider: str, package: Availability) -> Availability:
    """Whether a provider is installed. Imports nothing and asks no driver.

    Args:
        provider: ``cuda`` or ``tensorrt``: part of its library's name.
        package: whether the package can be used: :meth:`isorun.plugin.Backend.installed`.
    """
    if not package.ok:
        return package
    active = builds.build()
    if active is None:
        return Availability(False, "the build of the installed ONNX Runtime cannot be identified", _INSTALL)
    if not active.library(provider).is_file():
        return Availability(
            False,
            f"the active ONNX Runtime is {active.package!r}, which has no {active.library(provider).name} (all builds "
            "of ONNX Runtime share one import package, and the last one installed is active)",
            f"Run in a separate environment: {_INSTALL}",
        )
    return package


def preload() -> None:
    """Load CUDA's and cuDNN's libraries from their wheels, before the linker looks for them in the system.

    The wheels beside ONNX Runtime come first: they were installed for it. Then those in other folders on the path, such
    as the ones that PyTorch installed. ONNX Runtime's own ``preload_dlls`` knows the first only, and given a folder it
    takes what that folder lacks from the system, so a second folder would come too late.
    """
    active, spec = builds.build(), importlib.util.find_spec("nvidia")
    if active is None:
        return
    beside = str(active.folder.parents[1] / "nvidia")
    roots = [] if spec is None else list(spec.submodule_search_locations or [])
    folders = [folder for root in dict.fromkeys((beside, *roots)) for folder in sorted(Path(root).glob("*/lib"))]
    major = active.cuda.partition(".")[0]
    for name in (library.format(major=major) for library in _PRELOADED):
        path = next((path for folder in folders for path in sorted(folder.glob(name))), None)
        if path is not None:
            with contextlib.suppress(OSError):  # what the provider then lacks is reported where it does not load
                ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)


def require_providers(name: str, session: onnxruntime.InferenceSession, providers: Mapping[str, str]) -> None:
    """Reject a session that does not have the providers that it was opened with.

    Args:
        providers: each with ``cuda`` or ``tensorrt``.

    Raises:
        BackendUnavailable: with the reason why a provider did not load.
    """
    for provider, part in providers.items():
        if provider not in session.get_providers():
            raise not_loaded(name, part)


def not_loaded(name: str, provider: str) -> BackendUnavailable:
    """Why a provider is not among those of a session that requested it.

    Only to be called then: ONNX Runtime's provider libraries must not be loaded before it loads them itself.
    """
    active = builds.build()
    if active is None:
        return BackendUnavailable(name, "ONNX Runtime was uninstalled", _INSTALL)
    driver = gpu.availability()
    if missing := active.missing(provider):
        reason = f"{active.library(provider).name} needs {missing}, which cannot be loaded"
        remedy = _remedy(missing, active)
    else:
        reason = f"ONNX Runtime did not register its {provider} provider, although the library loads"
        remedy = "See ONNX Runtime's log."
    if not driver.ok:
        reason, remedy = f"{reason}; {driver.reason}", driver.remedy
    return BackendUnavailable(name, reason, remedy)


def require_cudnn(name: str) -> None:
    """Reject a machine without cuDNN. To be called after :func:`preload`.

    The provider loads without it, but its attention kernels fail at the first run, even those that do not use it.

    Raises:
        BackendUnavailable: cuDNN cannot be loaded.
    """
    active = builds.build()
    for library in _CUDNN:
        with contextlib.suppress(OSError):
            ctypes.CDLL(library, mode=ctypes.RTLD_GLOBAL)
            return
    assert active is not None, "a session was opened with it"
    reason = f"this model's attention kernels need {_CUDNN[0]}, which cannot be loaded"
    raise BackendUnavailable(name, reason, _remedy(_CUDNN[0], active))


def diagnose(name: str, provider: str) -> list[Finding]:
    """The library that an installed provider, ``cuda`` or ``tensorrt``, lacks. Loads libraries: to be called in a
    process of its own."""
    active = builds.build()
    if active is None or not active.library(provider).is_file():
        return []
    preload()
    missing = active.missing(provider)
    if missing is None:
        return []
    driver = cuda_driver.driver().problem
    why = f"ONNX Runtime only logs this and runs on the CPU{f'; in addition, {driver}' if driver else ''}"
    what = f"{active.library(provider).name} needs {missing}, which cannot be loaded"
    command, _ = _install(missing, active)
    return [Finding(f"the backend {name}", "warning" if driver else "error", what, why, command)]


def _remedy(missing: str, active: builds.Build) -> str:
    command, what = _install(missing, active)
    return f"Install {what}: {command}"


def _install(missing: str, active: builds.Build) -> tuple[str, str]:
    """The command that installs a library, and its description."""
    if missing.startswith(("libnvinfer", "libnvonnxparser")):
        version = re.search(r"\.so\.(\d+)", missing)
        package = f"tensorrt-cu{active.cuda.partition('.')[0]}" + (f"=={version[1]}.*" if version else "")
        return f"pip install '{package}'", "the TensorRT version that this build of ONNX Runtime needs"
    extras = "cudnn" if missing.startswith("libcudnn.") else "cuda,cudnn"
    return f"pip install '{GPU_BUILD}[{extras}]'", f"the libraries of CUDA {active.cuda}, unless the system has them"
