"""The backend ``ort-openvino``: OpenVINO as ONNX Runtime's execution provider, on the CPU.

It comes in a plugin package or in the legacy wheel onnxruntime-openvino. Both accept OpenVINO's properties as JSON in
the option ``load_config``; nothing else is reliable: the plugin package 1.8.1 ignores other options and computes in
bf16 by default, and the legacy wheel 1.24.1 runs on the CPU provider if it rejects an option. So the precision is
measured, and the assignment of nodes is checked. Both lose the errors of kernels with one thread
(:mod:`isorun_backends.onnxruntime.error_probe`), so a session has all threads, and at least two.
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Mapping
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from isorun.plugin import (
    Availability,
    Backend,
    BackendFailed,
    BackendUnavailable,
    Capabilities,
    CompileConfig,
    InvalidOption,
    LoweredModel,
    Option,
    UnsupportedModel,
    cpu_name,
    package_version,
    usable_cores,
)
from isorun_backends.common_quantization import openvino_properties
from isorun_backends.common_types import WideFeeds
from isorun_backends.onnxruntime import error_probe, placement, plugin_packages, precision_probe
from isorun_backends.onnxruntime.executable import PluginExecutable
from isorun_backends.onnxruntime.session import OPTIONS, as_text, checked, open_session, session_options

if TYPE_CHECKING:
    import onnxruntime

_PROVIDER = "OpenVINOExecutionProvider"
_PLUGIN = "onnxruntime_ep_openvino"
_LEGACY_WHEEL, _LEGACY = "legacy wheel", "onnxruntime-openvino==1.24.1"
_HINTS = {"fp32": "f32", "bf16": "bf16"}
_RESERVED = {
    "INFERENCE_PRECISION_HINT": "is reserved. Use precision= instead",
    "INFERENCE_NUM_THREADS": "is reserved: with one thread, the provider loses the errors of its kernels",
}
_CYCLE = "the graph is not acyclic"
_REMEDY = f"Create an environment and run the backend there: isorun env create ovn --install '{_LEGACY}'"


class OrtOpenVINO(Backend):
    """OpenVINO on the CPU, through ONNX Runtime."""

    contract = 2
    capabilities = Capabilities(
        priority=8,
        # The legacy wheel does not read Attention of opset 23, and OpenVINO ignores com.microsoft's mask_filter_value.
        dialects=("primitive",),
        precisions=("fp32", "bf16"),
        options={
            **OPTIONS,
            "properties": Option(
                "OpenVINO's own properties for the CPU, such as PERFORMANCE_HINT", "mapping", default={}
            ),
            "allow_cpu_nodes": placement.ALLOW_CPU_NODES,
        },
        dynamic_shapes=True,
        thread_safe=True,
        package="onnxruntime",
        requirement=_LEGACY,
        reports=("placement", "precision"),
        faults="isorun_backends.openvino.faults:LEGACY",
    )

    def installed(self) -> Availability:
        availability = super().installed()
        if not availability.ok or _has_plugin() or _is_legacy_wheel():
            return availability
        return Availability(ok=False, reason=_no_provider(), remedy=_REMEDY)

    def probe(self) -> Availability:
        """Loads the plugin package if it is installed: nothing else can tell whether it has a device here."""
        return checked(lambda: _package(self.name))

    def compile(self, model: LoweredModel, config: CompileConfig) -> PluginExecutable:
        options = self.read_options(config.options)
        package = _package(self.name)
        if package == _LEGACY_WHEEL and model.info.unread:
            raise UnsupportedModel(
                f"{self.name}: no node of {model.path} reads its input {model.info.unread[0]!r}. {_LEGACY} would "
                "confuse the other inputs with it. Use the backend openvino, or remove the input"
            )
        load_config = _load_config(self.name, options["properties"], model, config)
        computed = _measured(self.name, package, load_config)
        precision_probe.require(self.name, config.precision, computed)
        ort_options = session_options(self.name, options, config.threads)
        try:
            providers = _add_provider(self.name, package, load_config, ort_options)
            session = open_session(self.name, model, ort_options, providers)
        except BackendFailed as error:
            if _CYCLE not in str(error):
                raise
            raise UnsupportedModel(
                f"{self.name} splits {model.path} into parts with circular dependencies ({error.__cause__})"
            ) from error.__cause__
        nodes = placement.assigned(self.name, session)
        placement.require(self.name, _PROVIDER, nodes, model.path, allow_cpu_nodes=options["allow_cpu_nodes"])
        plugin = {_PLUGIN.replace("_", "-"): package_version(_PLUGIN) or "unknown"}
        return PluginExecutable(
            self.name,
            session,
            cpu_name(),
            computed,
            plugin if package == "plugin" else None,
            {"package": package, "load_config": json.loads(load_config)},
            wide=WideFeeds(self.name, model.info),
        )


def _add_provider(name: str, package: str, load_config: str, ort_options: onnxruntime.SessionOptions) -> list[Any]:
    """Add the provider of a package to session options, or return the ``providers`` argument."""
    options = {"load_config": load_config}
    if package == _LEGACY_WHEEL:
        return [(_PROVIDER, {"device_type": "CPU", **options})]
    ort_options.add_provider_for_devices(_plugin_devices(name), options)
    return []


@cache
def _measured(name: str, package: str, load_config: str) -> str:
    """The precision that the provider computes in, if it raises errors."""
    add = partial(_add_provider, name, package, load_config)
    error_probe.require(name, _PROVIDER, add)
    return precision_probe.measure(_PROVIDER, add)


def _package(name: str) -> str:
    """Which of the two packages provides it here, or raise ``BackendUnavailable``."""
    refusal = None
    if _has_plugin():
        try:
            _plugin_devices(name)
            return "plugin"
        except BackendUnavailable as error:
            refusal = error
    if _is_legacy_wheel():
        return _LEGACY_WHEEL
    raise BackendUnavailable(name, refusal.reason if refusal else _no_provider(), _REMEDY) from refusal


def _no_provider() -> str:
    return f"the installed onnxruntime ({package_version('onnxruntime')}) has no OpenVINO provider"


def _has_plugin() -> bool:
    return importlib.util.find_spec(_PLUGIN) is not None


def _is_legacy_wheel() -> bool:
    spec = importlib.util.find_spec("onnxruntime")
    folders = (spec.submodule_search_locations if spec else None) or []
    return any((Path(folder) / "capi" / "libonnxruntime_providers_openvino.so").is_file() for folder in folders)


def _plugin_devices(name: str) -> list[Any]:
    """The plugin's devices for the CPU."""
    return [device for device in plugin_packages.devices(name, _PLUGIN) if device.device.type.name == "CPU"]


def _load_config(name: str, properties: Mapping[str, Any], model: LoweredModel, config: CompileConfig) -> str:
    """OpenVINO's properties for a session, in the form that both packages accept."""
    for key, problem in _RESERVED.items():
        if key in properties:
            raise InvalidOption(name, "properties", f"the property {key} {problem}")
    reserved = {
        "INFERENCE_PRECISION_HINT": _HINTS[config.precision],
        "INFERENCE_NUM_THREADS": str(max(2, usable_cores())),
    }
    # It pins the threads of every model to the first cores: two with one thread each would share one core.
    needed = openvino_properties(model, config.precision)
    return json.dumps(
        {"CPU": {"ENABLE_CPU_PINNING": "NO", **needed, **as_text(name, "properties", properties), **reserved}}
    )
