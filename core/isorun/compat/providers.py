"""ONNX Runtime's execution providers as backends of isorun."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from isorun.compat.options import Translated
from isorun.errors import InvalidArgument
from isorun.types import devices

_logger = logging.getLogger("isorun")

CPU = "CPUExecutionProvider"
_CUDA, _TENSORRT, _OPENVINO = "CUDAExecutionProvider", "TensorrtExecutionProvider", "OpenVINOExecutionProvider"
BACKENDS = {CPU: "ort-cpu", _CUDA: "ort-cuda", _TENSORRT: "ort-tensorrt", _OPENVINO: "ort-openvino"}
_REMOTE = "AzureExecutionProvider"  # in every build, often first; calls services, and runs no operator
_PRECISIONS = {"FP32": "fp32", "BF16": "bf16", "FP16": "fp16"}

Options = Mapping[str, Any]


class Candidate(NamedTuple):
    """A backend for a session.

    Attributes:
        backend: its name.
        settings: arguments of :class:`isorun.Session`.
        provider: the provider that it replaces, for ``get_providers()``.
        provider_options: what ``get_provider_options()`` returns for it.
    """

    backend: str
    settings: dict[str, Any]
    provider: str
    provider_options: dict[str, str]


def candidates(
    providers: Sequence[str | tuple[str, Options]] | None,
    provider_options: Sequence[Options] | None,
    options: Translated,
) -> list[Candidate]:
    """The backends for a list of providers, in order.

    Args:
        providers, provider_options: as for ``onnxruntime.InferenceSession``; without providers, all of this build.
        options: the session options.

    Raises:
        InvalidArgument: no provider has a backend, or an option of a provider cannot be honoured.
        ValueError: the arguments do not fit together.
    """
    requested = _normalized(providers, provider_options)
    if requested.pop(_REMOTE, None) is not None and not requested:
        requested[CPU] = {}
    skipped = [name for name in requested if name not in BACKENDS]
    resolved = [
        _candidate(name, settings, options, fallback=CPU in requested)
        for name, settings in requested.items()
        if name in BACKENDS
    ]
    if not resolved:
        raise InvalidArgument(f"isorun has no backend for {', '.join(skipped)}. Use one of {', '.join(BACKENDS)}")
    if skipped:
        _logger.warning("isorun.compat: skipped %s: isorun has no backend for it", ", ".join(skipped))
    return resolved


def provider_of(backend: str) -> str:
    """The provider whose arrays are where those of a backend are."""
    others = {"openvino": _OPENVINO, "tensorrt": _TENSORRT}
    by_backend = {name: provider for provider, name in BACKENDS.items()} | others
    return by_backend.get(backend, CPU)


def _normalized(
    providers: Sequence[str | tuple[str, Options]] | None, provider_options: Sequence[Options] | None
) -> dict[str, dict[str, str]]:
    """Provider to its options, by ONNX Runtime's own check of the two arguments, without its warnings."""
    import warnings

    from onnxruntime.capi import _pybind_state as raw
    from onnxruntime.capi.onnxruntime_inference_collection import check_and_normalize_provider_args

    available = raw.get_available_providers()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        names, normalized = check_and_normalize_provider_args(providers or available, provider_options, available)
    return dict(zip(names, normalized, strict=True))


def _candidate(provider: str, provider_options: dict[str, str], options: Translated, *, fallback: bool) -> Candidate:
    backend = BACKENDS[provider]
    settings: dict[str, Any] = {"threads": options.threads, "options": dict(options.options)}
    rest = dict(provider_options)
    if provider in (_CUDA, _TENSORRT):
        settings["options"] |= {"device_id": int(rest.pop("device_id", 0)), "allow_cpu_nodes": fallback}
        if rest:
            settings["options"]["provider_options"] = rest
        provider_options = {"device_id": "0", **provider_options}
    elif provider == _OPENVINO:
        _openvino(rest, settings)
        if settings["device"] == "cpu":
            settings["options"]["allow_cpu_nodes"] = fallback
        else:
            backend = "openvino"
    elif rest:
        _logger.info("isorun.compat: ignored the options %s of %s", ", ".join(rest), provider)
    return Candidate(backend, settings, provider, provider_options)


def _openvino(provider_options: dict[str, str], settings: dict[str, Any]) -> None:
    device, _, suffix = provider_options.pop("device_type", "CPU").upper().partition("_")  # GPU_FP16 in old versions
    usual = "FP16" if {"gpu", "npu"}.issuperset(devices.kinds(device.lower())) else "FP32"
    precision = provider_options.pop("precision", suffix or usual)
    threads = provider_options.pop("num_of_threads", None)
    provider_options.pop("cache_dir", None)  # isorun has a cache of its own
    if precision not in _PRECISIONS or provider_options:
        refused = provider_options or {"precision": precision}
        raise InvalidArgument(
            f"isorun.compat does not support these options of {_OPENVINO}: {refused}. Pass "
            "backend='openvino' or 'ort-openvino' and options={'properties': ...} to the session"
        )
    settings |= {"device": device.lower(), "precision": _PRECISIONS[precision]}
    if threads is not None:
        settings["threads"] = int(threads)
