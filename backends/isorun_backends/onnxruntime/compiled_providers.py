"""Execution providers that are compiled into a build of ONNX Runtime: which there are, and which the installed one has.

A build lists its providers only once it is imported. :func:`installed` reads its files instead, which tell those of
every published build; what someone has compiled into a build of their own is found where its name is requested.
"""

from __future__ import annotations

import sys
from typing import NamedTuple

from isorun.plugin import BackendFailed, BackendUnavailable, cpu_name, import_runtime
from isorun_backends.onnxruntime import builds
from isorun_backends.onnxruntime.provider_target import ANY, Target
from isorun_backends.onnxruntime.session import require_placement, title

_COREML = "coreml"  # in every build for macOS
_PLUGINS = ("onnxruntime-qnn",)
_ASSERTED = " was false. "  # before the message of a failed assertion of ONNX Runtime
_OWN_BUILD = "No published package for this platform has it: build ONNX Runtime with it, or choose another backend."


class Provider(NamedTuple):
    """A provider that ONNX Runtime can be built with.

    Attributes:
        name: ONNX Runtime's name of it.
        device: the kind of device that it runs on; ``any`` if its options decide.
        package: the package to install for it: a plugin where there is one, otherwise a build. Empty if there is none.
        build: the distribution of a build that links it statically, so that no file is named after it.
        backend: isorun's backend for it.
        successor: what replaces it in newer builds.
    """

    name: str
    device: str
    package: str = ""
    build: str = ""
    backend: str = ""
    successor: str = ""


PROVIDERS = {
    "acl": Provider("ACLExecutionProvider", "cpu"),
    "cann": Provider("CANNExecutionProvider", "npu", "onnxruntime-cann"),
    _COREML: Provider("CoreMLExecutionProvider", ANY),
    "cpu": Provider("CPUExecutionProvider", "cpu", backend="ort-cpu"),
    "cuda": Provider("CUDAExecutionProvider", "gpu", backend="ort-cuda"),
    "dml": Provider("DmlExecutionProvider", "gpu", "onnxruntime-directml", "onnxruntime-directml"),
    "dnnl": Provider("DnnlExecutionProvider", "cpu"),
    "migraphx": Provider("MIGraphXExecutionProvider", "gpu", "onnxruntime-migraphx"),
    "nv-tensorrt-rtx": Provider("NvTensorRTRTXExecutionProvider", "gpu", "onnxruntime-ep-nv-tensorrt-rtx"),
    "openvino": Provider("OpenVINOExecutionProvider", ANY, "onnxruntime-ep-openvino"),
    "qnn": Provider("QNNExecutionProvider", ANY, "onnxruntime-qnn"),
    "rknpu": Provider("RknpuExecutionProvider", "npu"),
    "rocm": Provider("ROCMExecutionProvider", "gpu", successor="ort-ep:migraphx"),  # until 1.22
    "tensorrt": Provider("TensorrtExecutionProvider", "gpu", backend="ort-tensorrt"),
    "vitisai": Provider("VitisAIExecutionProvider", "npu"),
    "vsinpu": Provider("VSINPUExecutionProvider", "npu"),
    "webgpu": Provider("WebGpuExecutionProvider", "gpu", "onnxruntime-ep-webgpu", "onnxruntime-webgpu"),
    "xnnpack": Provider("XnnpackExecutionProvider", "cpu"),
}
"""By the NAME of ``ort-ep:NAME``. Azure's calls services and runs no operator; those of browsers and of Android have no
Python package."""


def installed() -> list[str]:
    """The names of the installed build's providers, without those that have another backend. Nothing is imported."""
    build = builds.build()
    if build is None:
        return []
    return [
        name
        for name, provider in PROVIDERS.items()
        if not provider.backend
        and (
            build.library(_stem(name)).is_file()
            or build.package == provider.build
            or (name == _COREML and sys.platform == "darwin")
        )
    ]


def refusal(name: str, provider: Provider) -> BackendUnavailable | None:
    """Why a provider cannot be requested at all: isorun has another backend for it."""
    if not provider.backend:
        return None
    return BackendUnavailable(
        name, f"isorun runs {provider.name} as {provider.backend!r}", f"Use backend={provider.backend!r}."
    )


def target(name: str, provider: Provider) -> Target:
    """The provider of the installed build.

    Raises:
        BackendUnavailable: isorun has another backend for it, the build does not have it, or is too old to tell which
            provider runs which node.
    """
    if refused := refusal(name, provider):
        raise refused
    try:
        import_runtime("onnxruntime")
        from onnxruntime.capi._pybind_state import get_available_providers
    except ImportError as error:
        reason = f"onnxruntime cannot be imported ({type(error).__name__}: {error})"
        raise BackendUnavailable(name, reason, "Reinstall it, with versions of its requirements that fit.") from error
    build, available = title(), get_available_providers()
    if provider.name not in available:
        reason = f"{build} has no {provider.name} (it has {', '.join(available)})"
        raise BackendUnavailable(name, reason, _remedy(name, provider))
    require_placement(name, *([f"Use {provider.successor}."] if provider.successor else []))
    kinds = {"cpu": cpu_name(), ANY: f"chosen by {provider.name}"}
    device = kinds.get(provider.device, f"{provider.device.upper()} of {provider.name}")
    return Target(provider.name, device, [device], {})


def unusable(name: str, provider: Provider, error: BackendFailed, remedy: str = "") -> BackendUnavailable:
    """Why a provider of the installed build does not work on this machine."""
    build, stem = builds.build(), _stem(name.rpartition(":")[2])
    missing = build.missing(stem) if build is not None and build.library(stem).is_file() else None
    why = f"needs {missing}, which cannot be loaded" if missing else f"cannot be set up here ({_message(error)})"
    return BackendUnavailable(
        name,
        f"{provider.name} of {title()} {why}",
        remedy or "Install the driver and the libraries of its hardware, or choose another backend.",
    )


def _remedy(name: str, provider: Provider) -> str:
    if provider.successor:
        return f"Newer builds replace it. Use {provider.successor}."
    if not provider.package:
        return _OWN_BUILD
    if provider.package.startswith("onnxruntime-ep-") or provider.package in _PLUGINS:
        return f"Install the plugin that has it: pip install {provider.package}"
    environment = name.rpartition(":")[2]
    return (
        f"Install a build that has it in an environment: isorun env create {environment} --install {provider.package}"
    )


def _message(error: Exception) -> str:
    return str(error.__cause__ or error).rpartition(_ASSERTED)[2].strip()


def _stem(name: str) -> str:
    """The part of a library's name that names the provider."""
    return name.replace("-", "_")
