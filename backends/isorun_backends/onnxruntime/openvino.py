"""ONNX Runtime's OpenVINO provider: its plugin package where that offers a device, else the legacy wheel's own.

Both take OpenVINO's properties as JSON in the option ``load_config``, and nothing else is relied on: the plugin
package 1.8.1 accepts any other option without a word and computes in bf16 by default, and the legacy wheel 1.24.1
answers an option that it does not like by running on the CPU provider. What is computed in is therefore measured, and
who took which node is asked.
"""

from __future__ import annotations

import importlib.util
import json
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from isorun.errors import BackendFailed, BackendUnavailable, UnsupportedModel
from isorun.plugin.backend import Backend
from isorun.system.hardware import cpu_name
from isorun.system.packages import package_version
from isorun.types import Availability, Capabilities, CompileConfig, LoweredModel, RuntimeReport
from isorun_backends.onnxruntime import placement, plugins, precision
from isorun_backends.onnxruntime.session import OPTIONS, OrtExecutable, mapping, open_session, options, versions

if TYPE_CHECKING:
    import onnxruntime

_PROVIDER = "OpenVINOExecutionProvider"
_PLUGIN = "onnxruntime_ep_openvino"
_LEGACY = "onnxruntime-openvino==1.24.1"
_HINTS = {"fp32": "f32", "bf16": "bf16"}
_OURS = ("INFERENCE_PRECISION_HINT", "INFERENCE_NUM_THREADS")
_CYCLE = "the graph is not acyclic"
_REMEDY = f"Make an environment for it, and run there: isorun env create ovn --install '{_LEGACY}'"


class OrtOpenVINO(Backend):
    """OpenVINO on the CPU, through ONNX Runtime."""

    capabilities = Capabilities(
        # The legacy wheel reads no Attention of opset 23, and OpenVINO ignores what com.microsoft's lowers scores by.
        dialects=("primitive",),
        precisions=("fp32", "bf16"),
        options={
            **OPTIONS,
            "properties": "a mapping of OpenVINO's own properties for the CPU, such as PERFORMANCE_HINT",
            placement.ALLOW: placement.MEANING,
        },
        sets_threads=True,
        dynamic_shapes=True,
        thread_safe=True,
        package="onnxruntime",
        requirement=_LEGACY,
        reports=("placement", "precision"),
    )

    def availability(self) -> Availability:
        """Loads the plugin package where that is installed: nothing else can tell whether it has a device here."""
        runtime = super().availability()
        if not runtime.ok:
            return runtime
        try:
            _way(self.name)
        except BackendUnavailable as error:
            return Availability(ok=False, reason=error.reason, remedy=error.remedy)
        return Availability(ok=True)

    def compile(self, model: LoweredModel, config: CompileConfig) -> OrtOpenVINOExecutable:
        setup = _Setup(_way(self.name), self.name, _load_config(self.name, config))
        computes = _measured(setup)
        if computes != config.precision:
            raise BackendUnavailable(
                self.name, f"it was asked for {config.precision} and computes in {computes} here", "Ask for that."
            )
        made = options(self.name, config)
        try:
            session = open_session(self.name, model, made, setup.providers(made))
        except BackendFailed as error:
            if _CYCLE not in str(error):
                raise
            raise UnsupportedModel(
                f"{self.name} takes parts of {model.path} that need one another's results ({error.__cause__})"
            ) from error.__cause__
        executable = OrtOpenVINOExecutable(self.name, session, setup, computes)
        placement.check(self.name, _PROVIDER, executable, model, config)
        return executable


class OrtOpenVINOExecutable(OrtExecutable):
    """A model loaded on the OpenVINO provider."""

    def __init__(self, name: str, session: onnxruntime.InferenceSession, setup: _Setup, computes: str) -> None:
        super().__init__(name, session)
        self._setup = setup
        self._computes = computes

    def report(self) -> RuntimeReport:
        found = versions()
        if self._setup.way == "plugin":
            found[_PLUGIN.replace("_", "-")] = package_version(_PLUGIN) or "unknown"
        return RuntimeReport(
            device=cpu_name(),
            precision=self._computes,
            operators=self.operators(),
            versions=found,
            details={"way": self._setup.way, "load_config": json.loads(self._setup.load_config)},
        )


class _Setup(NamedTuple):
    """How the provider is set up."""

    way: str
    name: str
    load_config: str

    def providers(self, made: onnxruntime.SessionOptions) -> list[Any]:
        """Put the provider into ONNX Runtime's options, or return it as what is named beside them."""
        given = {"load_config": self.load_config}
        if self.way == "legacy wheel":
            return [(_PROVIDER, {"device_type": "CPU", **given})]
        made.add_provider_for_devices(_plugin_devices(self.name), given)
        return []


@cache
def _measured(setup: _Setup) -> str:
    return precision.measure(_PROVIDER, setup.providers)


def _way(name: str) -> str:
    """By which of the two packages the provider is here.

    Raises:
        BackendUnavailable: by neither.
    """
    refusal = None
    if importlib.util.find_spec(_PLUGIN) is not None:
        try:
            _plugin_devices(name)
            return "plugin"
        except BackendUnavailable as error:
            refusal = error
    if _in_the_wheel():
        return "legacy wheel"
    reason = f"the onnxruntime that is installed ({package_version('onnxruntime')}) has no OpenVINO provider"
    raise BackendUnavailable(name, refusal.reason if refusal else reason, _REMEDY) from refusal


def _in_the_wheel() -> bool:
    spec = importlib.util.find_spec("onnxruntime")
    folders = (spec.submodule_search_locations if spec else None) or []
    return any((Path(each) / "capi" / "libonnxruntime_providers_openvino.so").is_file() for each in folders)


def _plugin_devices(name: str) -> list[Any]:
    """The plugin's devices for the CPU."""
    return [each for each in plugins.devices(name, _PLUGIN) if each.device.type.name == "CPU"]


def _load_config(name: str, config: CompileConfig) -> str:
    """OpenVINO's properties for what a session asks, as both packages take them."""
    given = mapping(name, config, "properties")
    for key in _OURS:
        if key in given:
            raise BackendUnavailable(
                name, f"the property {key} follows from what the session asks", "Use precision= and threads= instead."
            )
    ours = {"INFERENCE_PRECISION_HINT": _HINTS[config.precision], "INFERENCE_NUM_THREADS": str(config.threads)}
    return json.dumps({"CPU": {**given, **ours}})
