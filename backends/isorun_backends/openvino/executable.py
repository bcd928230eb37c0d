"""A model that OpenVINO has compiled, and how it is run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from isorun.errors import BackendFailed, InvalidFeeds
from isorun.plugin.backend import Binding, Executable, check_fits, runtime_errors
from isorun.types import Feeds, LoweredModel, RuntimeReport

if TYPE_CHECKING:
    import openvino

_REPORTED = {"f32": "fp32", "bf16": "bf16", "f16": "fp16", "i8": "int8", "u8": "int8"}
_PRODUCTS = ("FullyConnected", "MatMul", "Convolution")
_BOOKKEEPING = ("Const", "Input", "Output")


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
        array = _named(array)
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
                    tensor = self._tensor(_named(array), shared_memory=True)
                    request.set_output_tensor(self._outputs[name], tensor)
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


def _shareable(array: Any) -> bool:
    """Whether OpenVINO can use an array's memory as it is."""
    return bool(array.flags.c_contiguous and array.flags.writeable)


def _named(array: Any) -> Any:
    """The same memory under the type that OpenVINO knows: NumPy has two for 64 bits, and the array module gives the
    other."""
    return array.view(array.dtype.str) if array.dtype.char in "qQ" else array
