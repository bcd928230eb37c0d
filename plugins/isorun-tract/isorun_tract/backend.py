"""The backend ``tract``: an inference engine in Rust, on one thread of the CPU."""

from __future__ import annotations

import ctypes
import json
import re
from collections import Counter
from collections.abc import Sequence, Set
from typing import TYPE_CHECKING, Any

import numpy as np

from isorun.plugin import (
    Backend,
    BackendFailed,
    Capabilities,
    CompileConfig,
    Executable,
    Feeds,
    InvalidFeeds,
    LoweredModel,
    ModelInfo,
    RuntimeReport,
    UnsupportedModel,
    cpu_name,
    package_version,
    runtime_errors,
)

if TYPE_CHECKING:
    import tract

_UNKNOWN_OPERATOR = re.compile(r"Unimplemented\((\w+)\)")
_UNKNOWN_TYPE = re.compile(r"Unknown DatumType (\w+)")
_REJECTED = re.compile(r"(?:Building|Failed analyse for|Translating|codegen) node (.*)")  # while loading
_DIMENSIONS = "Unsupported DatumType in the public API TDim"
_SYMBOL = "Undetermined symbol in expression"
_INT64 = 0x28  # tract.DatumType.I64
_NO_WORK = ("Const", "Source")  # nodes of the optimized graph that compute nothing


class Tract(Backend):
    """tract in fp32. A run uses one thread; concurrent runs share the model."""

    contract = 2
    capabilities = Capabilities(
        dialects=("static",),
        precisions=("fp32",),
        refused={
            "bf16": "it has no bf16 kernels",
            "fp16": "it has fp16 kernels for ARM processors only",
            "int8": "it would compute isorun's int8, products of dequantized integers, in fp32",
        },
        dynamic_shapes=True,
        thread_safe=True,
        package="tract",
        requirement="tract>=0.23",
        reports=("placement",),
        data_dependent_shapes=False,
        fixed_threads=1,
        faults="isorun_tract.faults:FAULTS",
    )

    def compile(self, model: LoweredModel, config: CompileConfig) -> TractExecutable:
        """Load a model and optimize it, with its symbolic dimensions."""
        assert config.precision == "fp32"
        for spec in (*model.info.inputs, *model.info.outputs):
            if spec.dtype is None or spec.dtype.kind not in "biuf":
                raise UnsupportedModel(f"{self.name} does not support {spec.name!r}, of type {spec.type}")
        with runtime_errors(f"{self.name} cannot load {model.path}", _translate):
            import onnx
            import tract

            from isorun_tract import lengths

            required = lengths.required(onnx.load(str(model.path), load_external_data=False))
            runnable = tract.onnx().load(model.path).into_model().into_runnable()
        return TractExecutable(self.name, runnable, model.info, required)


class TractExecutable(Executable):
    """A model that tract has optimized.

    Args:
        name: the backend's name.
        runnable: the optimized model.
        info: its inputs and outputs.
        required: the dimensions that must not be 0 (:func:`isorun_tract.lengths.required`).
    """

    def __init__(self, name: str, runnable: tract.Runnable, info: ModelInfo, required: Set[str | None]) -> None:
        self._name = name
        self._runnable = runnable
        self._inputs = [spec.name for spec in info.inputs if not spec.overridable]
        self._shapes = {spec.name: spec.shape for spec in info.inputs}
        self._required = required
        self._outputs = {spec.name: index for index, spec in enumerate(info.outputs)}

    def run(self, output_names: Sequence[str] | None, feeds: Feeds) -> list[Any]:
        """Run once, in a state of its own, so that several threads may run at a time."""
        if constants := feeds.keys() - set(self._inputs):
            raise InvalidFeeds(
                f"{self._name} does not support feeds in the place of default values "
                f"(got {', '.join(map(repr, sorted(constants)))}). Omit them or choose another backend"
            )
        for name in self._inputs if self._required else ():
            sizes = np.shape(feeds[name])
            zeros = {dim for dim, size in zip(self._shapes[name] or (), sizes, strict=False) if size == 0}
            if 0 in sizes and (None in self._required or zeros & self._required):
                raise InvalidFeeds(
                    f"Input {name!r} has the shape {sizes}, and {self._name} would end the process where the model "
                    "reduces an axis of length 0 or looks up in one. Choose another backend"
                )
        with runtime_errors(f"{self._name} failed while running", _translate):
            results = self._runnable.run([feeds[name] for name in self._inputs])
            return [_array(results[self._outputs[name]]) for name in output_names or self._outputs]

    def report(self) -> RuntimeReport:
        """The operators of the optimized graph, from tract's own list."""
        with runtime_errors(f"{self._name} cannot describe the model", _translate):
            nodes = json.loads(self._runnable.profile_json(None))["nodes"]
        operators = Counter(node["op_name"] for node in nodes if node["op_name"] not in _NO_WORK)
        return RuntimeReport(
            device=cpu_name(),
            precision="fp32",
            operators={"tract": dict(operators.most_common())},
            versions={"tract": package_version("tract") or "unknown"},
        )

    def close(self) -> None:
        """Release the model. A run that has begun keeps it until it ends."""
        del self._runnable


def _array(tensor: tract.Tensor) -> np.ndarray:
    """A copy of a tensor. Its own to_numpy() makes a ctypes array type for each shape, which ctypes keeps for good."""
    try:
        datum, shape, address = tensor._parts()
    except Exception as error:
        if _DIMENSIONS not in str(error):
            raise
        tensor = tensor.convert_to(_INT64)  # what was computed from sizes
        datum, shape, address = tensor._parts()
    dtype = "?" if datum.name == "BOOL" else f"{datum.name[0].lower()}{int(datum.name[1:]) // 8}"
    array = np.empty(shape, dtype)
    ctypes.memmove(array.ctypes.data, address, array.nbytes)
    return array


def _translate(error: Exception) -> UnsupportedModel | BackendFailed:
    """Convert an error of tract, whose text ends with a stack backtrace of Rust."""
    message = " ".join(str(error).partition("Stack backtrace:")[0].split())
    if match := _UNKNOWN_OPERATOR.search(message):
        return UnsupportedModel(f"tract does not implement the operator {match[1]}", [match[1]])
    if match := _UNKNOWN_TYPE.search(message):
        return UnsupportedModel(f"tract does not support the type {match[1]}. Choose another backend")
    if match := _REJECTED.search(message):
        return UnsupportedModel(f"tract does not support the node {match[1].rstrip('.')}. Choose another backend")
    if _SYMBOL in message:
        return UnsupportedModel("tract does not support outputs that hold sizes of the inputs. Choose another backend")
    return BackendFailed(f"tract failed: {message}")
