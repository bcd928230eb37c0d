"""The backend ``openvino``, on the CPU.

OpenVINO computes in bf16 by default on processors with bf16 arithmetic, whatever the model's types: the precision is
always set, and read back.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from isorun.plugin import (
    Backend,
    BackendFailed,
    BackendUnavailable,
    Capabilities,
    CompileConfig,
    InvalidOption,
    LoweredModel,
    Option,
    UnsupportedModel,
    cpu_flags,
    cpu_name,
    did_you_mean,
    runtime_errors,
)
from isorun_backends.openvino.executable import OpenVINOExecutable

if TYPE_CHECKING:
    import openvino

_UNKNOWN_OPERATORS = (
    r"(?:OpenVINO does not support the following ONNX|No conversion rule found for) operations: ([^\n]+)"
)
# The kernels of each kind that a compiled model keeps for shapes that it has run. OpenVINO's default is 5000: in int8
# every dense layer has one for each length, 2.8 MiB a length for MiniLM, up to 1.7 GiB after 500 lengths. With 300 it
# stays below 0.5 GiB. Making a kernel again costs little: requests whose lengths all differ, one at a time, need 4 to
# 10 % more processor time, and batches of 64 callers no more than they vary (2026.4.1, Zen 4).
_KERNELS = 300
_RESERVED = {"INFERENCE_PRECISION_HINT": "precision", "INFERENCE_NUM_THREADS": "threads", "DEVICE_ID": "device"}


class OpenVINO(Backend):
    """OpenVINO on the CPU, in fp32, int8 or bf16. The floating-point part of int8 is bf16 where that is faster."""

    contract = 2
    capabilities = Capabilities(
        priority=9,
        # OpenVINO fuses the plain operators itself. For opset 23's Attention it keeps a guard against NaN, which costs
        # 2 to 4 % (2026.4.1, bert-3l).
        dialects=("primitive", "onnx"),
        precisions=("fp32", "bf16", "int8"),
        typed=("int8",),
        refused={"fp16": "OpenVINO would use bf16 instead on a processor without fp16 arithmetic"},
        options={
            "properties": Option("OpenVINO's own properties, such as PERFORMANCE_HINT", "mapping", default={}),
        },
        sets_threads=True,
        dynamic_shapes=True,
        thread_safe=True,
        package="openvino",
        requirement="openvino>=2026.0",
        reports=("placement", "precision"),
        faults="isorun_backends.openvino.faults:FAULTS",
    )

    def compile(self, model: LoweredModel, config: CompileConfig) -> OpenVINOExecutable:
        try:
            import openvino
        except RuntimeError as error:  # its telemetry looks for the user's home (2026.4)
            problem = f"importing openvino failed: {str(error).rstrip('.')}"
            raise BackendUnavailable(self.name, problem, "Set HOME to a folder.") from error

        core = openvino.Core()
        hint = self._hint(core, config.precision)
        properties = {
            "PERFORMANCE_HINT": "LATENCY",
            # It would bind the threads of every model to the first cores, so that two models share them.
            "ENABLE_CPU_PINNING": False,
            "CPU_RUNTIME_CACHE_CAPACITY": _KERNELS,
            **_properties(self.name, core, self.read_options(config.options)["properties"]),
            "INFERENCE_PRECISION_HINT": hint,
            "INFERENCE_NUM_THREADS": config.threads,
        }
        _check_outputs(self.name, model)
        with runtime_errors(f"{self.name} cannot load {model.path}", partial(_recognize, self.name, model)):
            graph = core.read_model(model.path)
            if any(spec.type == "tensor(string)" for spec in model.info.inputs):
                _remove_string_identities(graph)
            compiled = core.compile_model(graph, "CPU", properties)
            actual = compiled.get_property("INFERENCE_PRECISION_HINT").to_string()
        if actual != hint:
            raise BackendFailed(f"{self.name} computes in {actual} instead of the requested {hint}")
        return OpenVINOExecutable(self.name, compiled, model)

    def _hint(self, core: openvino.Core, precision: str) -> str:
        """The precision of whatever the graph does not compute in integers."""
        if precision == "fp32":
            return "f32"
        if "BF16" in core.get_property("CPU", "OPTIMIZATION_CAPABILITIES"):
            return "bf16" if precision == "bf16" or _multiplies_bf16_faster() else "f32"
        if precision == "bf16":
            raise BackendUnavailable(self.name, "this processor has no bf16 arithmetic", "Use precision='fp32'.")
        return "f32"


def _multiplies_bf16_faster() -> bool:
    """Whether bf16, if it is there, is faster than fp32: on processors of Intel only with AMX (docs/backends.md)."""
    return "Intel" not in cpu_name() or "amx_bf16" in cpu_flags()


def _remove_string_identities(graph: openvino.Model) -> None:
    """Remove Identity nodes of strings: OpenVINO copies the pointers and frees both (2026.4)."""
    import openvino

    for node in graph.get_ops():
        if node.get_type_name() == "Identity" and node.get_input_element_type(0) == openvino.Type.string:
            node.output(0).replace(node.input_value(0))


def _check_outputs(name: str, model: LoweredModel) -> None:
    """Reject outputs that OpenVINO returns as another type: bf16 as fp16, fp8 as uint8, 4-bit numbers in pairs."""
    for spec in model.info.outputs:
        if spec.type.startswith("tensor(") and spec.type != "tensor(string)" and spec.dtype is None:
            raise UnsupportedModel(
                f"{name} cannot return the output {spec.name!r} of type {spec.type}, which NumPy does not have. "
                "Cast it to another type in the model, such as float"
            )


def _properties(name: str, core: openvino.Core, properties: Mapping[str, Any]) -> dict[str, Any]:
    """The caller's own properties, validated against those that the device supports."""
    if not properties:
        return {}  # listing the supported properties takes as long as loading a small model
    supported = dict(core.get_property("CPU", "SUPPORTED_PROPERTIES"))
    writable = {key for key, access in supported.items() if access != "RO" and key not in _RESERVED}
    for key in properties:
        if key in _RESERVED:
            problem = f"the property {key} is reserved. Use {_RESERVED[key]}= instead"
            raise InvalidOption(name, "properties", problem)
        if key not in writable:
            raise InvalidOption(name, "properties", f"unknown property {key!r}{did_you_mean(key, writable)}")
    return dict(properties)


def _recognize(name: str, model: LoweredModel, error: Exception) -> UnsupportedModel | None:
    """The operators that OpenVINO does not support, if that is what an error in loading a model means."""
    match = re.search(_UNKNOWN_OPERATORS, str(error))
    if match is None:
        return None
    missing = [operator.strip() for operator in match[1].split(",")]
    return UnsupportedModel(f"{name} does not support operators of {model.path}: {', '.join(missing)}", missing)
