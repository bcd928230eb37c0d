"""ONNX Runtime's execution providers as backends of isorun."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from isorun.compat.options import Translated
from isorun.errors import InvalidArgument, did_you_mean
from isorun.plugin import registry
from isorun.types import devices

_logger = logging.getLogger("isorun")

AUTO = "auto"
CPU = "CPUExecutionProvider"
_CUDA, _TENSORRT, _OPENVINO = "CUDAExecutionProvider", "TensorrtExecutionProvider", "OpenVINOExecutionProvider"
BACKENDS = {CPU: "ort-cpu", _CUDA: "ort-cuda", _TENSORRT: "ort-tensorrt", _OPENVINO: "ort-openvino"}
_FAMILY = "ort-ep"  # of the providers that have no backend of their own
_SUFFIX = "ExecutionProvider"
_SWITCHES = {"migraphx_fp16_enable": "fp16", "migraphx_bf16_enable": "bf16"}  # an option, and the precision it requests
_QUANTIZING = ("migraphx_int8_enable", "migraphx_fp8_enable")
_ON = ("1", "true")
_REMOTE = "AzureExecutionProvider"  # in every build, often first; calls services, and runs no operator
_PRECISIONS = {"FP32": "fp32", "BF16": "bf16", "FP16": "fp16"}

Options = Mapping[str, Any]


class Candidate(NamedTuple):
    """A backend for a session.

    Attributes:
        backend: its name, or ``auto``.
        settings: arguments of :class:`isorun.Session`.
        provider: the provider that it replaces, for ``get_providers()``.
        provider_options: what ``get_provider_options()`` returns for it.
    """

    backend: str
    settings: dict[str, Any]
    provider: str
    provider_options: dict[str, str]

    @property
    def title(self) -> str:
        """What was requested, for messages."""
        return self.provider or f"device={self.settings.get('device')!r}"


def by_policy(options: Translated) -> list[Candidate]:
    """The candidates of a selection policy: automatic selection among the backends of each kind of device, in order."""
    own = dict.fromkeys(BACKENDS.values(), options.options) if options.options else {}
    settings = {"threads": options.threads, "options": own}
    return [Candidate(AUTO, {**settings, "device": device}, "", {}) for device in options.devices]


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
    names = _backends(requested)
    skipped = [provider for provider in requested if provider not in names]
    resolved = [
        _candidate(name, provider, requested[provider], options, fallback=CPU in requested)
        for provider, name in names.items()
    ]
    if not resolved:
        hint = did_you_mean(skipped[0], list(_backends(_known_providers())))
        raise InvalidArgument(f"isorun has no backend for {', '.join(skipped)}{hint}")
    if skipped:
        _logger.warning("isorun.compat: skipped %s: isorun has no backend for it", ", ".join(skipped))
    return resolved


def provider_of(backend: str) -> str:
    """The provider whose arrays are where those of a backend are."""
    others = {"openvino": _OPENVINO, "tensorrt": _TENSORRT}
    by_backend = {name: provider for provider, name in BACKENDS.items()} | others
    family, _, member = backend.partition(":")
    if family == _FAMILY:
        return next((provider for provider in _known_providers() if _plain(provider) == _letters(member)), CPU)
    return by_backend.get(backend, CPU)


def _known_providers() -> list[str]:
    """The providers that ONNX Runtime names itself, and those of registered plugin libraries (1.32 names fewer)."""
    from onnxruntime.capi import _pybind_state as raw

    return [*raw.get_all_providers(), *(device.ep_name for device in raw.get_ep_devices())]


def _backends(providers: Iterable[str]) -> dict[str, str]:
    """Provider to its backend, without the providers that have none."""
    providers = [provider for provider in providers if provider != _REMOTE]
    names = dict(BACKENDS)
    if not names.keys() >= set(providers):
        members = {_letters(member): member for member in registry.requestable(_FAMILY)}
        plain = {provider: _plain(provider) for provider in providers if provider not in names}
        names |= {provider: f"{_FAMILY}:{members[key]}" for provider, key in plain.items() if key in members}
    return {provider: names[provider] for provider in providers if provider in names}


def _plain(provider: str) -> str:
    return _letters(provider.removesuffix(_SUFFIX))


def _letters(name: str) -> str:
    return "".join(character for character in name.lower() if character.isalnum())


def _normalized(
    providers: Sequence[str | tuple[str, Options]] | None, provider_options: Sequence[Options] | None
) -> dict[str, dict[str, str]]:
    """Provider to its options, by ONNX Runtime's own check of the two arguments, without its warnings."""
    import warnings

    from onnxruntime.capi import _pybind_state as raw
    from onnxruntime.capi.onnxruntime_inference_collection import check_and_normalize_provider_args

    if isinstance(providers, str):
        raise InvalidArgument(f"providers must be a list such as [{providers!r}], got {providers!r}")
    available = raw.get_available_providers()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        names, normalized = check_and_normalize_provider_args(providers or available, provider_options, available)
    return dict(zip(names, normalized, strict=True))


def _candidate(
    name: str, provider: str, provider_options: dict[str, str], options: Translated, *, fallback: bool
) -> Candidate:
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
            if settings.pop("threads") is not None:
                _logger.info("isorun.compat: ignored the number of threads, which %s does not support", name)
        else:
            name = "openvino"
    elif name not in BACKENDS.values():
        _of_family(provider, rest, settings)
        settings["options"] |= {"allow_cpu_nodes": fallback, "provider": rest}
    elif rest:
        _logger.info("isorun.compat: ignored the options %s of %s", ", ".join(rest), provider)
    return Candidate(name, settings, provider, provider_options)


def _of_family(provider: str, provider_options: Mapping[str, str], settings: dict[str, Any]) -> None:
    """The precision that a provider's own options request; its threads are not isorun's to set."""
    if settings.pop("threads") is not None:
        _logger.info("isorun.compat: ignored intra_op_num_threads, which does not reach %s", provider)
    requested = [option for option, value in provider_options.items() if value.lower() in _ON]
    if quantizing := [option for option in requested if option in _QUANTIZING]:
        raise InvalidArgument(
            f"isorun.compat does not support {quantizing[0]} of {provider}. Quantize the model, or pass "
            "precision='int8' and a backend that supports it"
        )
    precisions = [_SWITCHES[option] for option in requested if option in _SWITCHES]
    if precisions:
        settings["precision"] = precisions[0]


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
