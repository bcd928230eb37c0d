"""Intel's OpenVINO, its own runtime, on the CPU.

It computes in bf16 by default wherever the processor can, whatever the model says: the precision is
therefore always set, and read back.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from isorun.backend import Backend, Binding, Executable, check_fits, runtime_errors
from isorun.errors import BackendFailed, BackendUnavailable, InvalidFeeds, UnsupportedModel, did_you_mean
from isorun.types import Capabilities, CompileConfig, Feeds, LoweredModel, RuntimeReport

if TYPE_CHECKING:
    import openvino

_REPORTED = {"f32": "fp32", "bf16": "bf16", "f16": "fp16", "i8": "int8", "u8": "int8"}
_PRODUCTS = ("FullyConnected", "MatMul", "Convolution")
_BOOKKEEPING = ("Const", "Input", "Output")
_UNKNOWN_OPERATORS = (
    r"(?:OpenVINO does not support the following ONNX|No conversion rule found for) operations: ([^\n]+)"
)
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


class OpenVINOExecutable(Executable):
    """A compiled model, with an inference request for each run that is in flight.

    Feeds are read where they lie. Each run gives its outputs memory of their own, which the caller keeps.
    """

    def __init__(self, name: str, compiled: openvino.CompiledModel, model: LoweredModel) -> None:
        import openvino

        self._name = name
        self._compiled = compiled
        self._tensor = openvino.Tensor
        # By their places: OpenVINO renames an input where it takes out the operator behind it. One with a value of its
        # own is a constant to it.
        self._inputs = [spec.name for spec in model.info.inputs if not spec.overridable]
        self._constants = [spec.name for spec in model.info.inputs if spec.overridable]
        self._outputs = {spec.name: index for index, spec in enumerate(model.info.outputs)}
        inputs = {name for port in compiled.inputs for name in port.get_names()}
        self._results = [
            _Result(port, index, handed_on=not inputs.isdisjoint(port.get_names()))
            for index, port in enumerate(compiled.outputs)
        ]
        self._strings = {spec.name for spec in model.info.inputs if spec.type == "tensor(string)"}
        # With one thread, the synchronous call loses what a kernel raises and leaves the outputs unwritten; with
        # strings it warns that it copies them (seen in 2026.4).
        one_thread = compiled.get_property("INFERENCE_NUM_THREADS") == 1
        self._asynchronous = one_thread or any(result.strings for result in self._results)
        self._idle: list[openvino.InferRequest] = []

    def run(self, output_names: Sequence[str] | None, feeds: Feeds) -> list[Any]:
        if self._constants:
            self._refuse_constants(feeds)
        try:
            request = self._request()
            for index, name in enumerate(self._inputs):
                request.set_input_tensor(index, self._input(name, feeds[name]))
            made = [result.give(request) for result in self._results]
            self.infer(request)
            results = [result.take(request, tensor) for result, tensor in zip(self._results, made, strict=True)]
        except Exception as error:
            raise BackendFailed(f"{self._name} failed while running: {error}") from error
        self._idle.append(request)
        return results if output_names is None else [results[self._outputs[name]] for name in output_names]

    def _request(self) -> openvino.InferRequest:
        # append and pop are atomic: as many requests come to be as runs were ever in flight at once
        try:
            return self._idle.pop()
        except IndexError:
            return self._compiled.create_infer_request()

    def _refuse_constants(self, feeds: Feeds) -> None:
        for name in self._constants:
            if name in feeds:
                raise InvalidFeeds(
                    f"{self._name} keeps the value that the model itself has for {name!r}: leave it out, "
                    "or take another backend"
                )

    def result(self, name: str) -> _Result:
        """How to take one output."""
        return self._results[self._outputs[name]]

    def infer(self, request: openvino.InferRequest) -> None:
        """Run a request, without the copies of its outputs that OpenVINO would return."""
        if self._asynchronous:
            request.start_async()
            request.wait()
        else:
            request.infer(share_outputs=True)

    def index(self, name: str) -> int:
        """Which of the model's outputs has that name."""
        return self._outputs[name]

    def _input(self, name: str, array: np.ndarray) -> openvino.Tensor:
        if name in self._strings:
            return self._tensor(np.asarray(array, np.str_), shared_memory=False)
        if not _shareable(array):
            # The tensor has memory of its own: one that shares an array's does not keep that array alive.
            return self._tensor(np.asarray(array, order="C"), shared_memory=False)
        return self._tensor(array, shared_memory=True)

    def report(self) -> RuntimeReport:
        import openvino

        with runtime_errors(f"{self._name} does not say what it runs"):
            operators, precisions = self._layers()
            device = self._compiled.get_property("EXECUTION_DEVICES")[0]
            full_name = openvino.Core().get_property(device, "FULL_DEVICE_NAME")
            hint = self._compiled.get_property("INFERENCE_PRECISION_HINT").to_string()
        products = sorted({precision for kind in _PRODUCTS for precision in precisions.get(kind, ())})
        return RuntimeReport(
            device=full_name,
            precision="+".join(_REPORTED.get(name, name) for name in products or [hint]),
            operators={device: operators},
            versions={"openvino": openvino.get_version()},
            details={"layers_by_precision": precisions, "precision_hint": hint},
        )

    def _layers(self) -> tuple[dict[str, int], dict[str, dict[str, int]]]:
        """Kinds of layers and their numbers, and the same by the precision that each computes in."""
        kinds: Counter[str] = Counter()
        precisions: dict[str, Counter[str]] = {}
        for layer in self._compiled.get_runtime_model().get_ops():
            notes = layer.get_rt_info()
            kind = notes["layerType"].astype(str)
            if kind not in _BOOKKEEPING:
                kinds[kind] += 1
                precisions.setdefault(kind, Counter())[notes["runtimePrecision"].astype(str)] += 1
        return dict(kinds.most_common()), {kind: dict(counts) for kind, counts in precisions.items()}

    def bind(self, feeds: Feeds, outputs: Mapping[str, np.ndarray | None]) -> Binding:
        self._refuse_constants(feeds)
        given = [array for array in outputs.values() if array is not None]
        handed_on = any(self.result(name).handed_on for name, array in outputs.items() if array is not None)
        if handed_on or not all(_shareable(array) for array in [*feeds.values(), *given]):
            return super().bind(feeds, outputs)
        with runtime_errors(f"{self._name} cannot bind"):
            request = self._compiled.create_infer_request()
            for index, name in enumerate(self._inputs):
                request.set_input_tensor(index, self._input(name, feeds[name]))
            for name, array in outputs.items():
                if array is not None:
                    request.set_output_tensor(self._outputs[name], self._tensor(array, shared_memory=True))
        return _OpenVINOBinding(self._name, self, request, feeds, outputs)

    def close(self) -> None:
        self._idle.clear()
        del self._compiled


class _OpenVINOBinding(Binding):
    """A request of its own, which reads the inputs in place and writes outputs to the memory given."""

    def __init__(
        self,
        name: str,
        executable: OpenVINOExecutable,
        request: openvino.InferRequest,
        feeds: Feeds,
        outputs: Mapping[str, np.ndarray | None],
    ) -> None:
        super().__init__(executable, feeds, outputs)
        self._name = name
        self._openvino = executable
        self._request = request
        self._given = [(name, executable.index(name), array) for name, array in outputs.items() if array is not None]
        self._new = {name: executable.result(name) for name, array in outputs.items() if array is None}

    def run(self) -> list[Any]:
        with runtime_errors(f"{self._name} failed while running"):
            made = {name: result.give(self._request) for name, result in self._new.items()}
            self._openvino.infer(self._request)
            # Where the memory does not fit, OpenVINO takes other memory and says nothing.
            for name, index, given in self._given:
                check_fits(name, given, self._request.get_output_tensor(index).shape)
            return [
                self._new[name].take(self._request, made[name]) if array is None else array
                for name, array in self._outputs.items()
            ]


class _Result:
    """One output: memory for it that OpenVINO fills and, where the shape is not fixed, grows. To one that is an input
    handed on it writes nothing: it takes the two for one tensor."""

    def __init__(self, port: openvino.ConstOutput, index: int, *, handed_on: bool) -> None:
        import openvino

        self._tensor = openvino.Tensor
        self._type = port.element_type
        self._index = index
        shape = port.partial_shape
        self._shape = None
        self.handed_on = handed_on
        self.strings = port.element_type == openvino.Type.string
        if not handed_on and shape.rank.is_static and not self.strings:
            self._shape = [size.get_length() if size.is_static else 0 for size in shape]

    def give(self, request: openvino.InferRequest) -> openvino.Tensor | None:
        """Have the next run write to new memory; ``None`` where the result is taken from the runtime's own."""
        if self._shape is None:
            return None
        tensor = self._tensor(self._type, self._shape)
        request.set_output_tensor(self._index, tensor)
        return tensor

    def take(self, request: openvino.InferRequest, tensor: openvino.Tensor | None) -> Any:
        """The result: the memory given, or a copy of the runtime's own, which its next run overwrites."""
        if tensor is not None:
            return tensor.data
        own = request.get_output_tensor(self._index)
        return own.str_data.astype(object) if self.strings else own.data.copy()


def _takes_strings(model: LoweredModel) -> bool:
    return any(spec.type == "tensor(string)" for spec in model.info.inputs)


def _without_identities(graph: openvino.Model) -> None:
    """Take them out where they hand strings on: OpenVINO copies those by their pointers, and frees both (2026.4)."""
    import openvino

    for node in graph.get_ops():
        if node.get_type_name() == "Identity" and node.get_input_element_type(0) == openvino.Type.string:
            node.output(0).replace(node.input_value(0))


def _shareable(array: Any) -> bool:
    """Whether OpenVINO can use an array's memory as it is."""
    return bool(array.flags.c_contiguous and array.flags.writeable)


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
