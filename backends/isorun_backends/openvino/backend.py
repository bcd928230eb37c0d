"""The backend ``openvino``.

OpenVINO computes in bf16 or fp16 by default on devices that can, whatever the model's types: the precision is always
set, and read back.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from isorun.plugin import (
    Backend,
    BackendUnavailable,
    Capabilities,
    CompileConfig,
    LoweredModel,
    Option,
    UnsupportedModel,
    import_runtime,
    runtime_errors,
)
from isorun_backends.common_quantization import openvino_properties
from isorun_backends.common_types import check_types
from isorun_backends.openvino import angles, devices
from isorun_backends.openvino.executable import OpenVINOExecutable

if TYPE_CHECKING:
    import openvino

_UNSUPPORTED = (
    r"(?:OpenVINO does not support the following ONNX|No conversion rule found for) operations: ([^\n]+)",
    r"Conversion is failed for: ([^\n]+)",  # in this form, such as an input of unknown rank
    r"doesn't support (\w+) operation with dynamic rank",
)


class OpenVINO(Backend):
    """OpenVINO, in the precisions that a device has. The floating-point part of int8 is in the fastest of them."""

    contract = 2
    capabilities = Capabilities(
        priority=9,
        # OpenVINO fuses the plain operators itself. For opset 23's Attention it keeps a guard against NaN, which costs
        # 2 to 4 % (2026.4.1, bert-3l).
        dialects=("primitive", "onnx"),
        precisions=("fp32", "bf16", "fp16", "int8"),
        typed=("fp32", "int8"),
        devices=devices.FORMS,
        unverified=devices.UNVERIFIED,
        options={
            "properties": Option(
                "OpenVINO's own properties, such as PERFORMANCE_HINT; those of one device in DEVICE_PROPERTIES",
                "mapping",
                default={},
            ),
        },
        sets_threads=True,
        dynamic_shapes=True,
        thread_safe=True,
        package="openvino",
        requirement="openvino>=2026.0",
        reports=("placement", "precision"),
        repeatable=True,
        faults="isorun_backends.openvino.faults:FAULTS",
    )

    def accelerators(self, device: str) -> Sequence[str]:
        if device == "cpu":
            return ()
        core = self._core()
        return devices.accelerators(core, devices.members(self.name, core, device))

    def compile(self, model: LoweredModel, config: CompileConfig) -> OpenVINOExecutable:
        core = self._core()
        target = devices.Target(self.name, core, config.device, config.precision)
        own = self.read_options(config.options)["properties"]
        properties = target.properties(own, config.threads, openvino_properties(model, config.precision))
        check_types(self.name, model.info)
        with runtime_errors(f"{self.name} cannot load {model.path}", partial(_recognize, self.name, model)):
            graph = core.read_model(model.path)
            if any(spec.type == "tensor(string)" for spec in model.info.inputs):
                _remove_string_identities(graph)
            if config.precision != "fp32":
                angles.keep_angles(graph)
            compiled = core.compile_model(graph, target.device, properties)
            target.check(compiled)
        return OpenVINOExecutable(self.name, compiled, target, model)

    def _core(self) -> openvino.Core:
        try:
            module = import_runtime("openvino")
        except RuntimeError as error:  # its telemetry looks for the user's home (2026.4)
            problem = f"importing openvino failed: {str(error).rstrip('.')}"
            raise BackendUnavailable(self.name, problem, "Set HOME to a folder.") from error
        core: openvino.Core = module.Core()
        return core


def _remove_string_identities(graph: openvino.Model) -> None:
    """Remove Identity nodes of strings: OpenVINO copies the pointers and frees both (2026.4)."""
    import openvino

    for node in graph.get_ops():
        if node.get_type_name() == "Identity" and node.get_input_element_type(0) == openvino.Type.string:
            node.output(0).replace(node.input_value(0))


def _recognize(name: str, model: LoweredModel, error: Exception) -> UnsupportedModel | None:
    """The operators that OpenVINO does not support, if that is what an error in loading a model means."""
    lists = [match for pattern in _UNSUPPORTED for match in re.findall(pattern, str(error))]
    if not lists:
        return None
    missing = [re.sub(r"-\d+$", "", operator.strip()) for operator in ",".join(lists).split(",")]
    *_, reason = str(error).partition("\nSummary:")[0].strip(" .\n").splitlines()
    return UnsupportedModel(
        f"{name} does not support operators of {model.path}: {', '.join(missing)} ({reason})", missing
    )
