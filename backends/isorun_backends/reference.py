"""ONNX's reference evaluator: slow, in NumPy, written to be read. The oracle that other backends are held to.

It computes in the types that a graph has: fp32, or fp16 in a graph that is written in it (NumPy adds up a product of
fp16 matrices in fp32 and rounds the sum). ``precision="fp64"`` computes in double precision throughout and returns it:
the model's weights and every constant are widened first, so that what is left of a difference is the other side's
rounding.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from isorun.errors import BackendFailed, BackendUnavailable, UnsupportedModel
from isorun.plugin.backend import Backend, Executable, runtime_errors
from isorun.system.hardware import cpu_name
from isorun.types import Capabilities, CompileConfig, Feeds, LoweredModel, RuntimeReport

if TYPE_CHECKING:
    import onnx
    from onnx.reference import ReferenceEvaluator


class Reference(Backend):
    """ONNX's reference evaluator, in the graph's own types or in fp64."""

    capabilities = Capabilities(
        dialects=("primitive",),
        precisions=("fp32", "fp64", "fp16"),
        typed=("fp16",),
        dynamic_shapes=True,
        package="onnx",
        requirement="onnx",
        reports=("placement",),
    )

    def compile(self, model: LoweredModel, config: CompileConfig) -> ReferenceExecutable:
        import onnx
        from onnx.reference import ReferenceEvaluator

        def recognise(error: Exception) -> UnsupportedModel | None:
            if isinstance(error, NotImplementedError) or "No implementation for operator" in str(error):
                return UnsupportedModel(f"{self.name} lacks an operator of {model.path}: {error}")
            return None

        with runtime_errors(f"{self.name} cannot load {model.path}", recognise):
            proto = onnx.load(model.path)
            if config.precision == "fp64":
                proto = _widened(proto, model.path)
            computes = _precision(proto) or config.precision
            if config.precision not in computes.split("+"):
                raise BackendUnavailable(
                    self.name,
                    f"it computes in a model's own types, and this one's matrices are {computes}",
                    f"Ask for precision='{computes.partition('+')[0]}', or 'fp64'.",
                )
            evaluator = ReferenceEvaluator(proto)
        return ReferenceExecutable(self.name, evaluator, proto, computes)


class ReferenceExecutable(Executable):
    """A model in the evaluator. NumPy takes as many threads as its BLAS was told to."""

    def __init__(self, name: str, evaluator: ReferenceEvaluator, proto: onnx.ModelProto, precision: str) -> None:
        self._name = name
        self._evaluator = evaluator
        self._operators = Counter(
            f"{node.domain}.{node.op_type}" if node.domain else node.op_type for node in proto.graph.node
        )
        self._precision = precision
        self._wide = precision == "fp64"

    def run(self, output_names: Sequence[str] | None, feeds: Feeds) -> list[Any]:
        if self._wide:
            feeds = {name: _widen(value) for name, value in feeds.items()}
        try:
            with np.errstate(all="ignore"):  # an infinity or a NaN is an answer, as it is of every other runtime
                results = self._evaluator.run(None if output_names is None else list(output_names), dict(feeds))
        except Exception as error:
            raise BackendFailed(f"{self._name} failed while running: {error}") from error
        # An output that is a feed, or another output, is handed on as it is: the caller gets one of its own.
        return [_own(value) if isinstance(value, np.ndarray) else value for value in results]

    def report(self) -> RuntimeReport:
        import onnx

        return RuntimeReport(
            device=cpu_name(),
            precision=self._precision,
            operators={"numpy": dict(self._operators.most_common())},
            versions={"onnx": onnx.__version__, "numpy": np.__version__},
        )


def _own(array: np.ndarray) -> np.ndarray:
    """A copy; of strings, as the objects that every other backend gives."""
    return array.astype(object) if array.dtype.kind == "U" else np.array(array)


def _precision(proto: onnx.ModelProto) -> str:
    """The types of a graph's matrices as they are when a product takes them; empty where it has none."""
    from onnx import TensorProto

    names = {
        TensorProto.FLOAT16: "fp16",
        TensorProto.BFLOAT16: "bf16",
        TensorProto.FLOAT: "fp32",
        TensorProto.DOUBLE: "fp64",
    }
    stored = {tensor.name: tensor.data_type for tensor in proto.graph.initializer if len(tensor.dims) > 1}
    found = set()
    for node in proto.graph.node:
        to = next((attribute.i for attribute in node.attribute if attribute.name == "to"), None)
        found |= {(stored[name] if to is None else to) for name in node.input if name in stored}
    return "+".join(names[kind] for kind in names if kind in found)


def _widen(value: Any) -> Any:
    narrow = isinstance(value, np.ndarray) and value.dtype.name in ("float16", "bfloat16", "float32")
    return value.astype(np.float64) if narrow else value


def _widened(proto: onnx.ModelProto, path: Path) -> onnx.ModelProto:
    """The same model with every narrower float made float64: weights, constants, casts, inputs and outputs."""
    from onnx import TensorProto, numpy_helper

    narrow = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16)

    def tensor(given: onnx.TensorProto) -> None:
        if given.data_type in narrow:
            given.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(given).astype(np.float64), given.name))

    def value(given: onnx.ValueInfoProto) -> None:
        if given.type.tensor_type.elem_type in narrow:
            given.type.tensor_type.elem_type = TensorProto.DOUBLE

    def graph(given: onnx.GraphProto) -> None:
        for each in given.initializer:
            tensor(each)
        for info in (*given.input, *given.output, *given.value_info):
            value(info)
        for node in given.node:
            for attribute in node.attribute:
                if attribute.HasField("t"):
                    tensor(attribute.t)
                if attribute.HasField("g"):
                    graph(attribute.g)
                if node.op_type == "Cast" and attribute.name == "to" and attribute.i in narrow:
                    attribute.i = TensorProto.DOUBLE
                if node.op_type == "Constant" and attribute.name in ("value_float", "value_floats"):
                    floats = attribute.f if attribute.name == "value_float" else list(attribute.floats)
                    made = numpy_helper.from_array(np.array(floats, np.float64))
                    attribute.Clear()
                    attribute.name, attribute.type = "value", onnx.AttributeProto.TENSOR
                    attribute.t.CopyFrom(made)

    import onnx

    if proto.functions:
        raise UnsupportedModel(f"{path} has functions of its own; in fp64 the reference takes models without them")
    graph(proto.graph)
    return proto
