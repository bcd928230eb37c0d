"""Intel's OpenVINO, its own runtime, on the CPU.

It computes in bf16 by default wherever the processor can, whatever the model says: the precision is
therefore always set, and read back.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from isorun.errors import BackendFailed, BackendUnavailable, UnsupportedModel, did_you_mean
from isorun.plugin.backend import Backend, runtime_errors
from isorun.types import Capabilities, CompileConfig, LoweredModel
from isorun_backends.openvino.executable import OpenVINOExecutable

if TYPE_CHECKING:
    import openvino

_UNKNOWN_OPERATORS = (
    r"(?:OpenVINO does not support the following ONNX|No conversion rule found for) operations: ([^\n]+)"
)
_NO_NUMPY = ("tensor(bfloat16)", "tensor(int4)", "tensor(uint4)")
_OURS = ("INFERENCE_PRECISION_HINT", "INFERENCE_NUM_THREADS", "DEVICE_ID")


class OpenVINO(Backend):
    """OpenVINO on the CPU, in fp32, int8 or, where the processor has it, bf16. What int8 leaves in floating point is
    bf16 where the processor has that, too."""

    capabilities = Capabilities(
        # OpenVINO fuses the plain operators itself. Around opset 23's Attention it keeps a guard against NaN, which
        # costs 2 to 4 % (2026.4.1, bert-3l).
        dialects=("primitive", "onnx"),
        precisions=("fp32", "bf16", "int8"),
        typed=("int8",),
        refused={"fp16": "asked for it, OpenVINO sets itself to bf16 on a processor without fp16 arithmetic"},
        options={"properties": "a mapping of OpenVINO's own properties for the device, such as PERFORMANCE_HINT"},
        sets_threads=True,
        dynamic_shapes=True,
        thread_safe=True,
        package="openvino",
        requirement="openvino>=2026.0",
        reports=("placement", "precision"),
    )

    def compile(self, model: LoweredModel, config: CompileConfig) -> OpenVINOExecutable:
        import openvino

        core = openvino.Core()
        hint = self._hint(core, config.precision)
        properties = {
            "PERFORMANCE_HINT": "LATENCY",
            **_properties(self.name, core, config.options),
            "INFERENCE_PRECISION_HINT": hint,
            "INFERENCE_NUM_THREADS": config.threads,
        }
        _refuse_outputs(self.name, model)
        with runtime_errors(f"{self.name} cannot load {model.path}", partial(_recognise, self.name, model)):
            graph = core.read_model(model.path)
            if _takes_strings(model):
                _without_identities(graph)
            compiled = core.compile_model(graph, "CPU", properties)
            took = compiled.get_property("INFERENCE_PRECISION_HINT").to_string()
        if took != hint:
            raise BackendFailed(f"{self.name} was asked for {hint} and set itself to {took}")
        return OpenVINOExecutable(self.name, compiled, model)

    def _hint(self, core: openvino.Core, precision: str) -> str:
        """What to compute in what the graph does not have in integers."""
        if precision == "fp32":
            return "f32"
        if "BF16" in core.get_property("CPU", "OPTIMIZATION_CAPABILITIES"):
            return "bf16"
        if precision == "bf16":
            raise BackendUnavailable(self.name, "this processor has no bf16 arithmetic", "Ask for precision='fp32'.")
        return "f32"


def _takes_strings(model: LoweredModel) -> bool:
    return any(spec.type == "tensor(string)" for spec in model.info.inputs)


def _without_identities(graph: openvino.Model) -> None:
    """Take them out where they hand strings on: OpenVINO copies those by their pointers, and frees both (2026.4)."""
    import openvino

    for node in graph.get_ops():
        if node.get_type_name() == "Identity" and node.get_input_element_type(0) == openvino.Type.string:
            node.output(0).replace(node.input_value(0))


def _refuse_outputs(name: str, model: LoweredModel) -> None:
    """OpenVINO hands NumPy the bits of some types as another's: bf16 as fp16, two numbers of 4 bits as one of 8."""
    for spec in model.info.outputs:
        if spec.type in _NO_NUMPY:
            raise UnsupportedModel(
                f"{name} gives the output {spec.name!r}, a {spec.type}, as if its bits were another type's: "
                "let the model cast it to a type that NumPy has, such as float"
            )


def _properties(name: str, core: openvino.Core, options: Mapping[str, Any]) -> dict[str, Any]:
    """The user's own properties, once it is known that the device takes them."""
    given = options.get("properties", {})
    if not isinstance(given, Mapping):
        raise BackendUnavailable(name, f"its option 'properties' is a {type(given).__name__}", "Give a mapping.")
    if not given:
        return {}  # asking for what is known takes as long as loading a small model
    known = dict(core.get_property("CPU", "SUPPORTED_PROPERTIES"))
    writable = {key for key, access in known.items() if access != "RO" and key not in _OURS}
    for key in given:
        if key in _OURS:
            raise BackendUnavailable(
                name, f"the property {key} follows from what the session asks", "Use precision= and threads= instead."
            )
        if key not in writable:
            raise BackendUnavailable(
                name, f"it has no property {key!r} to set{did_you_mean(key, writable)}", "Leave it out."
            )
    return dict(given)


def _recognise(name: str, model: LoweredModel, error: Exception) -> UnsupportedModel | None:
    """What an error in loading a model means, where OpenVINO says it plainly."""
    found = re.search(_UNKNOWN_OPERATORS, str(error))
    if found is None:
        return None
    missing = [each.strip() for each in found[1].split(",")]
    return UnsupportedModel(f"{name} lacks operators of {model.path}: {', '.join(missing)}", missing)
