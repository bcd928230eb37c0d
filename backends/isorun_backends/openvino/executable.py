"""A model compiled by OpenVINO."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from isorun.plugin import (
    BackendFailed,
    Binding,
    Executable,
    Feeds,
    InvalidFeeds,
    LoweredModel,
    RuntimeReport,
    check_fits,
    runtime_errors,
)
from isorun_backends.common_types import WideFeeds

if TYPE_CHECKING:
    import openvino

    from isorun_backends.openvino.devices import Target

_PRECISIONS = {"f32": "fp32", "bf16": "bf16", "f16": "fp16", **dict.fromkeys(("i8", "u8", "i4", "u4"), "int8")}
_FLOATS = ("f32", "bf16", "f16")
_PRODUCTS = ("fullyconnected", "matmul", "gemm", "convolution")
_SMALL = 16  # elements
_BOOKKEEPING = ("Const", "Input", "Output")


class OpenVINOExecutable(Executable):
    """A compiled model, with one inference request per run in flight.

    Feeds are read in place. Each run writes to new output memory, which belongs to the caller.
    """

    def __init__(self, name: str, compiled: openvino.CompiledModel, target: Target, model: LoweredModel) -> None:
        import openvino

        self._name = name
        self._compiled, self._target = compiled, target
        self._tensor = openvino.Tensor
        # By index: OpenVINO renames an input if it removes the operator after it. An input with a default is a
        # constant to it.
        self._inputs = [spec.name for spec in model.info.inputs if not spec.overridable]
        self._constants = [spec.name for spec in model.info.inputs if spec.overridable]
        self._wide = WideFeeds(name, model.info)
        self._outputs = {spec.name: index for index, spec in enumerate(model.info.outputs)}
        inputs = {name for port in compiled.inputs for name in port.get_names()}
        self._results = [
            _Result(port, index, is_input=not inputs.isdisjoint(port.get_names()))
            for index, port in enumerate(compiled.outputs)
        ]
        self._strings = {spec.name for spec in model.info.inputs if spec.type == "tensor(string)"}
        # With one thread, the synchronous call swallows a kernel's exception and leaves the outputs unwritten; with
        # strings it warns about copies (seen in 2026.4).
        self._asynchronous = target.has_one_thread(compiled) or any(result.strings for result in self._results)
        self._idle: list[openvino.InferRequest] = []

    def run(self, output_names: Sequence[str] | None, feeds: Feeds) -> list[Any]:
        if self._constants:
            self._reject_constants(feeds)
        if self._wide:
            self._wide.reject(feeds)
        if self._strings:
            self._reject_ends(feeds)
        try:
            request = self._request()
            self._set_inputs(request, feeds)
            tensors = [result.allocate(request) for result in self._results]
            self.infer(request)
            results = [result.take(request, tensor) for result, tensor in zip(self._results, tensors, strict=True)]
        except Exception:  # around each run, runtime_errors() would cost a microsecond
            with runtime_errors(f"{self._name} failed while running"):
                raise
        self._idle.append(request)
        return results if output_names is None else [results[self._outputs[name]] for name in output_names]

    def _request(self) -> openvino.InferRequest:
        # append and pop are atomic: there are as many requests as runs were ever in flight at once
        try:
            return self._idle.pop()
        except IndexError:
            return self._compiled.create_infer_request()

    def _set_inputs(self, request: openvino.InferRequest, feeds: Feeds) -> None:
        for index, name in enumerate(self._inputs):
            request.set_input_tensor(index, self._input(name, feeds[name]))

    def _reject_constants(self, feeds: Feeds) -> None:
        for name in self._constants:
            if name in feeds:
                raise InvalidFeeds(
                    f"{self._name} always uses the model's own value of {name!r}. Omit it, or choose another backend"
                )

    def _reject_ends(self, feeds: Feeds) -> None:
        """Refuse strings of which the runtime would lose characters: NumPy's strings end before trailing zeros."""
        for name in self._strings & feeds.keys():
            if any(str(item).endswith("\0") for item in np.asarray(feeds[name]).flat):
                raise InvalidFeeds(
                    f"Input {name!r} has a string that ends in a NUL character, which {self._name} would lose. Remove "
                    "it, or choose another backend"
                )

    def infer(self, request: openvino.InferRequest) -> None:
        """Run a request without copying its outputs."""
        if self._asynchronous:
            request.start_async()
            request.wait()
        else:
            request.infer(share_outputs=True)

    def _input(self, name: str, array: np.ndarray) -> openvino.Tensor:
        if name in self._strings:
            return self._tensor(np.asarray(array, np.str_, order="C"), shared_memory=False)
        array = _canonical(array)
        if not _shareable(array):
            # The tensor owns a copy: a tensor that shares an array's memory does not keep that array alive.
            return self._tensor(np.asarray(array, order="C"), shared_memory=False)
        return self._tensor(array, shared_memory=True)

    def report(self) -> RuntimeReport:
        import openvino

        with runtime_errors(f"{self._name} cannot report its layers"):
            operators, precisions = self._layers()
            # AUTO puts the processor in parentheses while it compiles for another device.
            devices = [name.strip("()") for name in self._compiled.get_property("EXECUTION_DEVICES")]
            names = [openvino.Core().get_property(device, "FULL_DEVICE_NAME") for device in devices]
            hints = sorted(set(self._target.check(self._compiled).values()))
        products = {
            precision
            for kind, counts in precisions.items()
            if kind.replace("_", "").lower() in _PRODUCTS
            for precision in counts
        }
        return RuntimeReport(
            device=" and ".join(names),
            precision="+".join(_PRECISIONS.get(name, name) for name in sorted(products) or hints),
            operators={"+".join(devices): operators},  # OpenVINO does not say which of several runs a layer
            versions={"openvino": openvino.get_version()},
            details={
                "execution_devices": devices,
                "layers_by_precision": precisions,
                "precision_hint": "+".join(hints),
            },
        )

    def _layers(self) -> tuple[dict[str, int], dict[str, dict[str, int]]]:
        """Counts of layers by kind, and by kind and the precision that each computes in."""
        kinds: Counter[str] = Counter()
        precisions: dict[str, Counter[str]] = {}
        unrounded = self._target.unrounded(self._compiled)
        for layer in self._compiled.get_runtime_model().get_ops():
            notes = layer.get_rt_info()
            kind = notes["layerType"].astype(str)
            if kind not in _BOOKKEEPING:
                kinds[kind] += 1
                precision = notes["runtimePrecision"].astype(str)
                if precision not in _FLOATS:  # it may be that of the weights alone
                    computed = notes["primitiveType"].astype(str).rpartition("_")[2]
                    precision = computed if computed in unrounded else precision
                precisions.setdefault(kind, Counter())[precision] += 1
        return dict(kinds.most_common()), {kind: dict(counts) for kind, counts in precisions.items()}

    def bind(self, feeds: Feeds, outputs: Mapping[str, np.ndarray | None]) -> Binding:
        self._reject_constants(feeds)
        self._wide.reject(feeds)
        self._reject_ends(feeds)
        targets = {name: array for name, array in outputs.items() if array is not None}
        is_input = any(self._results[self._outputs[name]].is_input for name in targets)
        if is_input or not all(_shareable(array) for array in [*feeds.values(), *targets.values()]):
            return Binding(self, feeds, outputs)
        try:
            with runtime_errors(f"{self._name} cannot bind"):
                request = self._compiled.create_infer_request()
                self._set_inputs(request, feeds)
                for name, array in targets.items():
                    request.set_output_tensor(self._outputs[name], self._tensor(_canonical(array), shared_memory=True))
        except BackendFailed:
            Binding(self, feeds, outputs).run()  # names memory that does not fit
            raise
        results = [self._results[self._outputs[name]] for name in outputs]
        return _OpenVINOBinding(self._name, self, request, results, feeds, outputs)

    def close(self) -> None:
        self._idle.clear()
        del self._compiled


class _OpenVINOBinding(Binding):
    """A request of its own, which reads the inputs in place and writes outputs to the caller's memory."""

    def __init__(
        self,
        name: str,
        executable: OpenVINOExecutable,
        request: openvino.InferRequest,
        results: Sequence[_Result],
        feeds: Feeds,
        outputs: Mapping[str, np.ndarray | None],
    ) -> None:
        super().__init__(executable, feeds, outputs)  # holds the feeds: the request's tensors do not
        self._name, self._openvino, self._request = name, executable, request
        self._results = results

    def run(self) -> list[Any]:
        try:
            return self._run()
        except BackendFailed:
            super().run()  # names memory that does not fit, which for symbolic sizes only a run can tell
            raise

    def _run(self) -> list[Any]:
        with runtime_errors(f"{self._name} failed while running"):
            targets = list(zip(self._results, self._outputs.items(), strict=True))
            tensors = [result.allocate(self._request) if array is None else None for result, (_, array) in targets]
            self._openvino.infer(self._request)
            values = []
            for (result, (name, array)), tensor in zip(targets, tensors, strict=True):
                if array is not None:  # if the memory does not fit, OpenVINO silently uses other memory
                    check_fits(name, array, self._request.get_output_tensor(result.index).shape)
                values.append(result.take(self._request, tensor) if array is None else array)
            return values


class _Result:
    """One output: its memory is allocated here, filled by OpenVINO and, for a dynamic shape, grown by it.

    An output that is also an input is not written to such memory: OpenVINO treats the two as one tensor. Nor is a small
    one.
    """

    def __init__(self, port: openvino.ConstOutput, index: int, *, is_input: bool) -> None:
        import openvino

        self._tensor = openvino.Tensor
        self._type = port.element_type
        self._shape = None
        self.index = index
        self.is_input = is_input
        self.strings = port.element_type == openvino.Type.string
        shape = port.partial_shape
        # To set the memory of a small output takes longer than to copy it
        small = shape.is_static and math.prod(size.get_length() for size in shape) <= _SMALL
        if not is_input and shape.rank.is_static and not self.strings and not small:
            self._shape = [size.get_length() if size.is_static else 0 for size in shape]

    def allocate(self, request: openvino.InferRequest) -> openvino.Tensor | None:
        """New memory for the next run; ``None`` if the result is copied from the runtime's own memory."""
        if self._shape is None:
            return None
        tensor = self._tensor(self._type, self._shape)
        request.set_output_tensor(self.index, tensor)
        return tensor

    def take(self, request: openvino.InferRequest, tensor: openvino.Tensor | None) -> Any:
        """The result: the allocated memory, or a copy of the runtime's own, which its next run overwrites."""
        if tensor is not None:
            return tensor.data
        own = request.get_output_tensor(self.index)
        return own.str_data.astype(object) if self.strings else own.data.copy()


def _shareable(array: Any) -> bool:
    """Whether OpenVINO can use an array's memory in place."""
    return bool(array.flags.c_contiguous and array.flags.writeable)


def _canonical(array: Any) -> Any:
    """The same memory under the dtype that OpenVINO knows: NumPy has two dtypes for each 64-bit integer."""
    return array.view(array.dtype.str) if array.dtype.char in "qQ" else array
