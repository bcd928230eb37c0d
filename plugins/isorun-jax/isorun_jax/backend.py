"""The backend ``jax``: models compiled by XLA, one executable for each shape."""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from isorun.plugin import (
    Backend,
    Capabilities,
    CompileConfig,
    Executable,
    Feeds,
    LoweredModel,
    RuntimeReport,
    StaticShapes,
    UnsupportedModel,
    cpu_name,
    package_version,
    runtime_errors,
)
from isorun_jax import operators

_CONSTANT = 1024  # bytes; larger weights are arguments, since XLA would compile them into the executable
_importing = threading.Lock()


class Jax(Backend):
    """JAX on the CPU, in fp32."""

    contract = 2
    capabilities = Capabilities(
        dialects=("static",),
        static_shapes=StaticShapes(
            batches=(1, 2, 4, 8, 16, 32), lengths=(16, 32, 64, 128, 256, 512), executables=16, memory=4 << 30
        ),
        thread_safe=True,
        usable_after_failure=True,
        package="jax",
        requirement="jax>=0.10",
        reports=("placement",),
        priority=None,
    )

    def compile(self, model: LoweredModel, config: CompileConfig) -> Executable:
        """Trace a model, whose dimensions are all numbers, and compile it with XLA."""
        assert config.precision == "fp32"
        with runtime_errors(f"{self.name} cannot load {model.path}", _translate):
            import onnx

            proto = onnx.load(str(model.path))
            graph = proto.graph
            opset = next((entry.version for entry in proto.opset_import if entry.domain in ("", "ai.onnx")), 1)
            if missing := sorted(set(operators.unknown(graph, opset))):
                raise UnsupportedModel(f"{self.name} does not implement {', '.join(missing)}", missing)
            for spec in (*model.info.inputs, *model.info.outputs):
                if spec.dtype is None or spec.dtype.kind not in "biuf":
                    raise UnsupportedModel(f"{self.name} does not support {spec.name!r}, of type {spec.type}")
            return JaxExecutable(self.name, graph, opset, [spec.name for spec in model.info.inputs])


class JaxExecutable(Executable):
    """A model of one shape.

    Args:
        name: the backend's name.
        graph: the model, with its weights.
        opset: of ONNX's operators.
        inputs: the names of its inputs.
    """

    def __init__(self, name: str, graph: Any, opset: int, inputs: Sequence[str]) -> None:
        from onnx.helper import tensor_dtype_to_np_dtype
        from onnx.numpy_helper import to_array

        self._name = name
        self._operators = Counter(node.op_type for node in graph.node)
        self._outputs = {value.name: index for index, value in enumerate(graph.output)}
        weights = {tensor.name: to_array(tensor) for tensor in graph.initializer}
        defaults = {key: weights.pop(key) for key in inputs if key in weights}
        constants = {key: array for key, array in weights.items() if array.nbytes <= _CONSTANT}
        types = {value.name: value.type.tensor_type for value in graph.input}
        self._defaults, self._inputs = defaults, list(inputs)
        del graph.initializer[:]

        jax = _imported()
        with jax.enable_x64(True):  # of this thread

            def compute(arguments: dict[str, Any], feeds: dict[str, Any]) -> list[Any]:
                return operators.run(graph, opset, {**constants, **arguments, **feeds}, jax.numpy)

            cpu = jax.devices("cpu")[0]
            large = {key: array for key, array in weights.items() if key not in constants}
            self._weights = jax.device_put(large, cpu)
            shapes = {
                key: jax.ShapeDtypeStruct(
                    [size.dim_value for size in types[key].shape.dim],
                    tensor_dtype_to_np_dtype(types[key].elem_type),
                    sharding=jax.sharding.SingleDeviceSharding(cpu),
                )
                for key in inputs
            }
            self._compiled = jax.jit(compute).lower(self._weights, shapes).compile()
        self._size = sum(array.nbytes for array in weights.values())

    def run(self, output_names: Sequence[str], feeds: Feeds) -> list[Any]:
        with runtime_errors(f"{self._name} failed while running"), _imported().enable_x64(True):
            arrays = {key: np.asarray(feeds.get(key, self._defaults.get(key)), order="C") for key in self._inputs}
            results = self._compiled(self._weights, arrays)
            return [np.array(results[self._outputs[key]], order="C") for key in output_names]

    def report(self) -> RuntimeReport:
        return RuntimeReport(
            device=cpu_name(),
            precision="fp32",
            operators={"jax": dict(self._operators.most_common())},
            versions={"jax": package_version("jax") or "unknown"},
        )

    def size(self) -> int:
        """The bytes of the weights; XLA's code is small beside them."""
        return self._size

    def close(self) -> None:
        del self._compiled, self._weights


def _translate(error: Exception) -> UnsupportedModel | None:
    """Tracing stops where a shape, a number of values or an axis follows from an input."""
    if isinstance(error, _imported().errors.ConcretizationTypeError):
        return UnsupportedModel("jax supports no shapes that are computed from values of inputs")
    return None


@cache
def _imported() -> Any:
    """JAX. Its import sets environment variables and the state of NumPy's generator, which are restored."""
    with _importing:
        variables, random = dict(os.environ), np.random.get_state()  # noqa: NPY002
        import jax

        jax.devices("cpu")
        np.random.set_state(random)  # noqa: NPY002
        for name in os.environ.keys() - variables.keys():
            del os.environ[name]
    return jax
